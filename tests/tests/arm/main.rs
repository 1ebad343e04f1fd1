//! The host is this machine; the DPU is an emulated arm64 machine with its own kernel. Run by `hack/test vm`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests too: a failure is a panic at its place; times are told"
)]

mod lab;
mod pair;
mod pods;
mod reset;
mod vlans;

use std::time::Duration;

use e2e::{Settings, Timeouts};

/// Timeout for two machines, one of them emulated, to agree.
const LIMIT: Duration = Duration::from_secs(90);

/// Networks in VLANs of their own: blue and green with addresses, wire and cable without.
const NETWORKS: &str = r#"
[[network]]
name = "blue"
allowed_sources = ["192.0.2.0/24"]
default = true
vlan = 100
[[network.subnets]]
cidr = "10.1.0.0/16"
gateway = "10.1.0.1"
[[network.subnets]]
cidr = "fd00:10:1::/64"
gateway = "fd00:10:1::1"

[[network]]
name = "green"
allowed_sources = ["192.0.2.0/24"]
vlan = 200
bandwidth = { ingress_rate = 50000000 }
[[network.subnets]]
cidr = "10.2.0.0/24"
gateway = "10.2.0.1"

[[network]]
name = "wire"
vlan = 300

[[network]]
name = "cable"
vlan = 400
"#;

/// No grace: STATUS only succeeds while the agent has its session.
fn settings() -> Settings {
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    Settings { networks: NETWORKS.into(), timeouts, ..Settings::default() }
}
