//! The configuration file.

use std::{
    env,
    path::{Path, PathBuf},
};

use bootstrap::load_config;
use mtls::TlsSettings;
use serde::Deserialize;

use crate::error::CallError;

const VARIABLE: &str = "DPUCTL_CONFIG";
const IN_HOME: &str = ".config/dpu-offload/dpuctl.toml";
const OF_SYSTEM: &str = "/etc/dpu-offload/dpuctl.toml";

/// `dpuctl.toml`. `configs/dpuctl.toml` explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Address of the DPU's service, `host:port`.
    pub(crate) endpoint: Option<String>,
    /// Name of the DPU, as in its certificate.
    pub(crate) dpu: Option<String>,
    /// The operator's certificate and the CA. Relative paths start at the configuration's folder.
    pub(crate) tls: TlsSettings,
}

impl Config {
    /// Reads the file at `path`, or the first in the default places.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, CallError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => usual_place(env::var_os(VARIABLE).map(PathBuf::from), env::home_dir())?,
        };
        let mut config: Self = load_config(&path)?;
        config.tls.anchor(&path);
        Ok(config)
    }
}

fn usual_place(named: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf, CallError> {
    if let Some(path) = named.filter(|path| !path.as_os_str().is_empty()) {
        return Ok(path);
    }
    let in_home = home.map(|home| home.join(IN_HOME));
    let places: Vec<_> = in_home.into_iter().chain([PathBuf::from(OF_SYSTEM)]).collect();
    let found = places.iter().find(|place| place.exists()).cloned();
    found.ok_or(CallError::NoConfig { places })
}

#[cfg(test)]
mod fuzz {
    use super::*;

    #[test]
    fn dpuctl_configuration() {
        ::fuzz::target("dpuctl_configuration", |input| {
            if let Some(mut config) = ::fuzz::configuration::<Config>(input) {
                config.tls.anchor(Path::new("/etc/dpuctl.toml"));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/dpuctl.toml");

    #[test]
    fn the_example_is_read() {
        let config = Config::load(Some(Path::new(EXAMPLE))).unwrap();
        assert_eq!(config.endpoint.as_deref(), Some("192.168.100.2:7443"));
        assert_eq!(config.dpu.as_deref(), Some("dpu-1"));
        assert_eq!(config.tls.trust_domain, "dpu-offload.local");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dpuctl.toml");
        fs::write(&path, "[tls]\nca = 'ca.crt'\ncertificate = 'pki/me.crt'\nkey = '/k'").unwrap();
        let config = Config::load(Some(&path)).unwrap();
        assert_eq!(config.tls.ca, folder.path().join("ca.crt"));
        assert_eq!(config.tls.certificate, folder.path().join("pki/me.crt"));
        assert_eq!(config.tls.key, Path::new("/k"));
    }

    #[test]
    fn the_variable_goes_before_the_home() {
        let home = tempfile::tempdir().unwrap();
        let in_home = home.path().join(IN_HOME);
        fs::create_dir_all(in_home.parent().unwrap()).unwrap();
        fs::write(&in_home, "").unwrap();
        let place =
            |named: &str| usual_place(Some(named.into()), Some(home.path().into())).unwrap();
        assert_eq!(place("/named.toml"), Path::new("/named.toml"));
        assert_eq!(place(""), in_home);
    }

    #[test]
    fn a_missing_configuration_tells_the_places() {
        let error = usual_place(None, Some("/nonexistent".into())).unwrap_err().to_string();
        let own = "/nonexistent/.config/dpu-offload/dpuctl.toml";
        for named in [own, " /etc/dpu-offload/dpuctl.toml", "--config"] {
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
