//! `dpuctl pki`: certificates for development and tests.

use std::{path::Path, time::Duration};

use mtls::{
    Role,
    authority::{Authority, CA_CERTIFICATE, CA_KEY, Validity},
};

use crate::{arguments::Pki, console::Console, error::CallError};

pub(crate) fn pki(what: Pki, console: &mut Console<'_>) -> Result<(), CallError> {
    match what {
        Pki::Init { dir, trust_domain, days } => init(&dir, &trust_domain, days, console),
        Pki::Issue { role, name, dir, out, days } => {
            issue(role, &name, &dir, out.as_deref().unwrap_or(&dir), days, console)
        }
    }
}

fn init(
    folder: &Path,
    trust_domain: &str,
    days: u64,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    Authority::create(trust_domain, validity(days))?.save(folder)?;
    console.line(&folder.join(CA_CERTIFICATE).display().to_string())?;
    console.line(&folder.join(CA_KEY).display().to_string())
}

fn issue(
    role: Role,
    name: &str,
    folder: &Path,
    out: &Path,
    days: u64,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let issued = Authority::open(folder)?.issue(role, name, validity(days))?;
    let (certificate, key) = issued.save(out, &format!("{role}-{name}"))?;
    console.line(&certificate.display().to_string())?;
    console.line(&key.display().to_string())
}

fn validity(days: u64) -> Validity {
    const DAY: u64 = 24 * 60 * 60;
    Validity::from_now(Duration::from_secs(days * DAY))
}
