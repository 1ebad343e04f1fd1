//! `[delegates]` of the agent's configuration file.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::agent::out_of_range::out_of_range;

/// Longest call of a plugin, in seconds: an ADD has to be taken back before its caller gives up.
const LONGEST_CALL_S: u64 = 30;

/// Where networks are defined that other plugins make, and those plugins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DelegateSettings {
    /// The folder of the networks' definitions.
    pub networks: PathBuf,
    /// The folders of the plugins, in the order in which they are looked through.
    pub plugins: Vec<PathBuf>,
    /// Longest call of a plugin, in seconds.
    pub call_s: u64,
}

impl Default for DelegateSettings {
    fn default() -> Self {
        Self {
            networks: "/etc/dpu-offload/networks.d".into(),
            plugins: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            call_s: 10,
        }
    }
}

impl DelegateSettings {
    /// Longest call of a plugin.
    pub(super) const fn call(&self) -> Duration {
        Duration::from_secs(self.call_s)
    }
}

/// What makes no sense in it: one sentence each, without a final stop.
pub(in crate::agent) fn problems(
    settings: Option<&DelegateSettings>,
) -> impl Iterator<Item = String> {
    settings.into_iter().flat_map(|settings| {
        let folders = settings.plugins.iter().map(|folder| ("delegates.plugins", folder));
        let paths = folders.chain([("delegates.networks", &settings.networks)]);
        let relative = paths.filter(|(_, path)| !path.is_absolute());
        let relative =
            relative.map(|(key, path)| out_of_range(key, path.display(), "an absolute path"));
        let is_long = !(1..=LONGEST_CALL_S).contains(&settings.call_s);
        let long = is_long.then(|| {
            let range = format_args!("1 to {LONGEST_CALL_S}");
            out_of_range("delegates.call_s", settings.call_s, range)
        });
        relative.chain(long).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_delegate_settings_are_refused() {
        let told = |change: fn(&mut DelegateSettings)| {
            let mut settings = DelegateSettings::default();
            change(&mut settings);
            problems(Some(&settings)).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(told(|_| ()), "");
        assert!(told(|it| it.networks = "d".into()).starts_with("`delegates.networks` is d, but"));
        assert!(told(|it| it.plugins.push("bin".into())).starts_with("`delegates.plugins` is bin"));
        assert_eq!(told(|it| it.call_s = 31), "`delegates.call_s` is 31, but must be 1 to 30");
        assert_eq!(problems(None).count(), 0);
    }
}
