//! DPUs of any size: with many VFs, networks, attachments or journal rows.

use std::time::Duration;

use dpu_service::attachments::{Configuration, Depth, Settings};
use futures::{StreamExt as _, stream};
use ipnetwork::IpNetwork;
use model::{AttachSpec, AttachmentId, Lease, Network, Record};
use netlink::MacAddress;
use test_clock::Stopwatch;
use vf_alloc::FunctionId;

use crate::world::{World, configuration, detach_of, network, requesting, settings, spec};

/// Size of a DPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) vfs: u16,
    pub(crate) networks: u16,
}

pub(crate) const SMALL: Size = Size { vfs: 64, networks: 4 };
pub(crate) const LARGE: Size = Size { vfs: 4096, networks: 1000 };

/// Number of attachments in a large journal.
pub(crate) const RECORDED: u16 = 10_000;

/// Number of concurrent attaches while a DPU is filled.
const TOGETHER: usize = 64;

/// A DPU with all VFs but one attached, evenly spread over the networks.
pub(crate) async fn filled(size: Size) -> World {
    let world = empty(size).await;
    let filling = (1..size.vfs).map(|number| world.attach(on_network(size, number)));
    let attached: Vec<_> = stream::iter(filling).buffer_unordered(TOGETHER).collect().await;
    attached.into_iter().for_each(|attached| drop(attached.unwrap()));
    world
}

/// Durations of an attach and a detach of the remaining VF.
pub(crate) async fn attach_and_detach(world: &World, size: Size) -> [Duration; 2] {
    let last = on_network(size, 0);
    let container = last.key.container_id.clone();
    let begun = Stopwatch::start();
    world.attach(last).await.unwrap();
    let attached = begun.elapsed();
    world.engine.detach(detach_of(&container)).await.unwrap();
    [attached, begun.elapsed() - attached]
}

/// Time from the service's start until kernel and journal were compared, with `recorded` attachments in a journal with
/// 1,000 networks. The ports are still programmed.
pub(crate) async fn start_with(recorded: u16) -> Duration {
    let size = Size { vfs: recorded, ..LARGE };
    let mut world = empty(size).await;
    let record = world.attach(on_network(size, 0)).await.unwrap().record;
    let records: Vec<_> = (1..recorded).map(|number| like(&record, size, number)).collect();
    world.restart_with(&records).await;
    world.engine.reconcile(Depth::Thorough).await;
    let calls = world.kernel.calls();
    let took = world.time_of_restart().await;
    assert_eq!(world.list().len(), usize::from(recorded));
    assert_eq!(world.kernel.calls(), calls, "nothing was left to do");
    took
}

/// A DPU without attachments.
pub(crate) async fn empty(size: Size) -> World {
    let settings = Settings {
        attachments: usize::from(u16::MAX),
        networks: usize::from(size.networks),
        ..settings()
    };
    let networks = (0..size.networks).map(network_of).collect();
    World::with(Configuration { networks, ..configuration() }, settings, size.vfs).await
}

fn network_of(number: u16) -> Network {
    let [high, low] = number.to_be_bytes();
    network(&format!(
        "name = 'net-{number}'\ndefault = {}\n\
         [[subnets]]\ncidr = '{}.{low}.0.0/16'\n[[subnets]]\ncidr = 'fd00:{number:x}::/64'\n",
        number == 0,
        10 + high,
    ))
}

fn on_network(size: Size, number: u16) -> AttachSpec {
    let network = format!("net-{}", number % size.networks);
    requesting(spec(&format!("c-{number}")), |it| it.network = network)
}

/// The record of an attach with that VF, network and container.
fn like(record: &Record, size: Size, number: u16) -> Record {
    let network = network_of(number % size.networks);
    let [high, low] = number.to_be_bytes();
    let offset = 2 + u32::from(number / size.networks);
    let lease = |cidr: IpNetwork| Lease {
        address: IpNetwork::new(cidr.iter().nth(offset as usize).unwrap(), cidr.prefix()).unwrap(),
        gateway: None,
    };
    Record {
        id: AttachmentId(uuid::Uuid::now_v7()),
        key: on_network(size, number).key,
        vf: FunctionId::local(0, number),
        device: format!("d000:00:00.{}", number + 1).into(),
        mac: MacAddress([2, 0, 0, 0xff, high, low]),
        leases: network.subnets.iter().map(|subnet| lease(subnet.cidr)).collect(),
        network: network.into(),
        ..record.clone()
    }
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
