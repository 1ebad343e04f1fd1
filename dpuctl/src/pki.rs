//! `dpuctl pki`: certificates for development and tests.

use std::{path::Path, time::Duration};

use mtls::authority::{Authority, AuthorityError, CA_CERTIFICATE, CA_KEY, Validity};

use crate::{arguments::Pki, console::Console, error::CallError};

pub(crate) fn pki(what: Pki, console: &mut Console<'_>) -> Result<(), CallError> {
    let written = match what {
        Pki::Init { dir, trust_domain, days, force } => {
            let authority = Authority::create(&trust_domain, validity(days))?;
            if force {
                authority.save_over(&dir)?;
            } else {
                authority.save(&dir)?;
            }
            [CA_CERTIFICATE, CA_KEY].map(|name| dir.join(name))
        }
        Pki::Issue { role, name, dir, out, days, force } => {
            let issued = Authority::open(&dir)?.issue(role, &name, validity(days))?;
            let (folder, stem) = (out.unwrap_or(dir), format!("{role}-{name}"));
            if !force {
                refuse_to_replace(&folder, &stem)?;
            }
            issued.save(&folder, &stem)?.into()
        }
    };
    written.iter().try_for_each(|path| console.line(&path.display().to_string()))
}

fn refuse_to_replace(folder: &Path, stem: &str) -> Result<(), AuthorityError> {
    let paths = ["crt", "key"].map(|ending| folder.join(format!("{stem}.{ending}")));
    let existing = paths.into_iter().find(|path| path.exists());
    existing.map_or(Ok(()), |path| Err(AuthorityError::Exists(path)))
}

fn validity(days: u64) -> Validity {
    const DAY: u64 = 24 * 60 * 60;
    Validity::from_now(Duration::from_secs(days * DAY))
}
