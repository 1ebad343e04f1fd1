//! `[device_plugin]` of the agent's configuration file.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::agent::out_of_range::out_of_range;

/// The upper bound of `answer_ms`: an ADD has to end before the plugin's timeout.
pub(in crate::agent) const LONGEST_ANSWER_MS: u64 = 3000;

/// The settings of the kubelet's device plugin API.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DevicePluginSettings {
    /// The domain of the resources' names; a slash and the pool's name follow.
    pub prefix: String,
    /// The kubelet's folder for device plugins.
    pub folder: PathBuf,
    /// The kubelet's PodResources socket.
    pub pod_resources: PathBuf,
    /// How long the kubelet may take to answer, in milliseconds.
    pub answer_ms: u64,
}

impl Default for DevicePluginSettings {
    fn default() -> Self {
        Self {
            prefix: "dpu-offload.io".into(),
            folder: "/var/lib/kubelet/device-plugins".into(),
            pod_resources: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
            answer_ms: 2000,
        }
    }
}

impl DevicePluginSettings {
    pub(super) fn resource(&self, pool: &str) -> String {
        format!("{}/{pool}", self.prefix)
    }

    /// Whether the resource has our prefix, including resources of removed pools.
    pub(super) fn is_ours(&self, resource: &str) -> bool {
        let pool = resource.strip_prefix(&self.prefix);
        pool.is_some_and(|pool| pool.starts_with('/'))
    }

    /// The name of a resource's socket in the kubelet's folder.
    pub(super) fn socket(&self, pool: &str) -> String {
        format!("{}_{pool}.sock", self.prefix)
    }

    pub(super) const fn answer(&self) -> Duration {
        Duration::from_millis(self.answer_ms)
    }

    /// Invalid values: one sentence each, without a full stop.
    pub(in crate::agent) fn problems(&self) -> Vec<String> {
        let Self { prefix, folder, pod_resources, answer_ms } = self;
        let mut problems = Vec::new();
        let paths =
            [("device_plugin.folder", folder), ("device_plugin.pod_resources", pod_resources)];
        for (key, path) in paths.into_iter().filter(|(_, path)| !path.is_absolute()) {
            problems.push(out_of_range(key, path.display(), "an absolute path"));
        }
        if !is_domain(prefix) {
            let (value, range) = (format!("{prefix:?}"), "a domain such as \"dpu-offload.io\"");
            problems.push(out_of_range("device_plugin.prefix", value, range));
        }
        if !(1..=LONGEST_ANSWER_MS).contains(answer_ms) {
            let range = format!("1 to {LONGEST_ANSWER_MS}");
            problems.push(out_of_range("device_plugin.answer_ms", answer_ms, range));
        }
        problems
    }
}

/// Whether the kubelet accepts the text as a resource's domain. It refuses Kubernetes' own domains.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 63 && text.contains('.') && text.split('.').all(is_label)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn invalid_device_plugin_settings_are_refused() {
        let problem_of = |change: fn(&mut DevicePluginSettings)| {
            let mut settings = DevicePluginSettings::default();
            change(&mut settings);
            settings.problems().join("\n")
        };
        assert_eq!(problem_of(|_| ()), "");
        assert!(
            problem_of(|it| it.prefix = "VFs".into())
                .starts_with("`device_plugin.prefix` is \"VFs\"")
        );
        assert!(problem_of(|it| it.prefix = "a..io".into()).contains("device_plugin.prefix"));
        assert!(problem_of(|it| it.folder = "plugins".into()).contains("device_plugin.folder"));
        assert!(
            problem_of(|it| it.pod_resources = "p".into()).contains("device_plugin.pod_resources")
        );
        let long = problem_of(|it| it.answer_ms = 3001);
        assert_eq!(long, "`device_plugin.answer_ms` is 3001, but must be 1 to 3000");
    }
}
