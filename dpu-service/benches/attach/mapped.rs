//! What mapped ports cost where many attachments have some, in a network whose gateway is the DPU: the table of
//! nftables is the kernel's, in the namespace that this runs in.

use std::time::{Duration, Instant};

use dpu_service::attachments::Configuration;
use model::{AttachSpec, PortMapping, Protocol};
use netlink::nftables::Nftables;

use crate::world::{World, configuration, detach_of, network, requesting, settings, spec};

const ATTACHMENTS: u16 = 1000;
const ROUNDS: u16 = 300;
const REPLACEMENTS: u16 = 20;

/// The first port that is mapped.
const FIRST: u16 = 20_000;

const NETWORK: &str = "name = 'blue'\ndefault = true\ngateway_mode = 'dpu'\n\
                       subnets = [{ cidr = '10.1.0.0/16', gateway = '10.1.0.1' }, \
                       { cidr = 'fd00:1::/64', gateway = 'fd00:1::1' }]";

/// Prints the figures; without the right to change nftables, why there are none.
pub(crate) async fn print() {
    if let Err(error) = Nftables::open().and_then(|mut nftables| nftables.delete("dpu-offload")) {
        println!("no figures of mapped ports: {error}");
        return;
    }
    let configuration = Configuration { networks: vec![network(NETWORK)], ..configuration() };
    let world = World::on(None, configuration, settings(), ATTACHMENTS + 1).await;
    for number in 0..ATTACHMENTS {
        world.attach(mapped(number)).await.unwrap();
    }
    let (mut plain, mut with_port) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(time_of(&world, spec("last")).await);
        with_port.push(time_of(&world, mapped(ATTACHMENTS)).await);
    }
    let (plain, with_port) = (median(plain), median(with_port));
    println!(
        "with {ATTACHMENTS} attachments that have a mapped port each, for both families; p50 in turn"
    );
    println!(
        "attach: {plain:.3} ms; with a mapped port: {with_port:.3} ms, {:.3} ms more",
        with_port - plain
    );
    let mut replaced = Vec::new();
    for _ in 0..REPLACEMENTS {
        Nftables::open().unwrap().delete("dpu-offload").unwrap();
        replaced.push(time_of(&world, mapped(ATTACHMENTS)).await);
    }
    let replaced = median(replaced);
    println!(
        "with a mapped port, after the table was deleted: {replaced:.3} ms, {:.3} ms more",
        replaced - plain
    );
}

fn mapped(number: u16) -> AttachSpec {
    let port = PortMapping {
        host_port: FIRST + number,
        protocol: Protocol::Tcp,
        host_ip: None,
        container_port: 80,
    };
    let container = format!("mapped-{number}");
    requesting(spec(&container), |it| it.port_mappings = vec![port])
}

/// What an attach takes; the detach after it is not counted. Nor is another before it, so that each finds the
/// processor as the other does: to forget connections takes the kernel milliseconds.
async fn time_of(world: &World, measured: AttachSpec) -> Duration {
    attach_and_detach(world, spec("before")).await;
    attach_and_detach(world, measured).await
}

async fn attach_and_detach(world: &World, spec: AttachSpec) -> Duration {
    let container = spec.key.container_id.clone();
    let begin = Instant::now();
    world.attach(spec).await.unwrap();
    let took = begin.elapsed();
    world.engine.detach(detach_of(&container)).await.unwrap();
    took
}

/// In milliseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}
