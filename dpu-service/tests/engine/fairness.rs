//! Hosts beside one another: a busy one leaves the others their share.

use std::{sync::Arc, time::Duration};

use dpu_service::{
    attachments::{Depth, Detach, Engine},
    host::{
        Asked, Hello, HostTime, Inventory, PhysicalFunction, SessionId, VfCondition,
        VirtualFunction,
    },
    model::{AttachSpec, AttachmentKey, HostName},
    sessions::Session,
};
use futures::future::join_all;
use test_clock::Stopwatch;
use tokio::time::interval;
use vf_alloc::{FunctionId, PfId};

use crate::world::{World, configuration, detach_of, hello, network, pool, settings, spec};

/// ADDs of the busy host in each second, all at once.
const BURST: usize = 16;
/// ADDs of the other host that are timed.
const TIMED: usize = 100;
/// How long each change holds the kernel's lock.
const HELD: Duration = Duration::from_millis(1);

/// The host that is timed, with VFs of PF 1.
struct Other {
    engine: Arc<Engine>,
    session: Session,
}

fn other() -> HostName {
    HostName("node-2".into())
}

impl Other {
    async fn connect(world: &World) -> Self {
        let vf = |number| FunctionId { pf: PfId::local(1), vf: number };
        (0..4).for_each(|number| world.kernel.make(vf(number)));
        world.engine.reconcile(Depth::Thorough).await;
        let function = |number: u16| VirtualFunction {
            number,
            device: format!("d001:00:00.{}", number + 1).into(),
            condition: VfCondition::Clean,
        };
        let vfs = (0..4).map(function).collect();
        let pf = PhysicalFunction { id: PfId::local(1), vendor_id: 0x1d0f, device_id: 1, vfs };
        let inventory = Inventory { as_of: HostTime::default(), pfs: vec![pf] };
        let hello = Hello { inventory, ..hello(&world.kernel, "boot-2", &[]) };
        let session = world.engine.hosts().hello(other(), hello).await.unwrap();
        Self { engine: Arc::clone(&world.engine), session }
    }

    /// Which 99 of 100 ADDs take at most.
    async fn p99(&self) -> Duration {
        let mut taken = Vec::new();
        for number in 0..TIMED {
            let key = AttachmentKey { host: other(), ..spec(&format!("other-{number}")).key };
            let add = AttachSpec { key: key.clone(), network: Some("green".into()), ..spec("") };
            let asked = Asked { session: self.session.id, as_of: HostTime::default() };
            let begun = Stopwatch::start();
            self.engine.attach(add, asked).await.unwrap();
            taken.push(begun.elapsed());
            self.engine.detach(Detach { key, ..detach_of("") }).await.unwrap();
        }
        taken.sort();
        taken[TIMED * 99 / 100 - 1]
    }
}

/// Attaches as many pods as a burst has in each second, and detaches them.
async fn burst_without_end(engine: &Arc<Engine>, session: SessionId) {
    let asked = Asked { session, as_of: HostTime::default() };
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        let names = (0..BURST).map(|number| format!("busy-{number}")).collect::<Vec<_>>();
        let added = join_all(names.iter().map(|name| engine.attach(spec(name), asked))).await;
        added.into_iter().for_each(|added| drop(added.unwrap()));
        let ended = join_all(names.iter().map(|name| engine.detach(detach_of(name)))).await;
        ended.into_iter().for_each(|ended| ended.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_host_leaves_others_half() {
    let mut file = configuration();
    file.pools.push(pool("second", "p1"));
    let green = "name = 'green'\npool = 'second'\n[[subnets]]\ncidr = '10.2.0.0/16'\n";
    file.networks.push(network(green));
    let world = World::with(file, settings(), 32).await;
    let other = Other::connect(&world).await;
    world.kernel.slow_down(HELD);
    let alone = other.p99().await;
    let (engine, session) = (Arc::clone(&world.engine), world.session.id);
    let busy = tokio::spawn(async move { burst_without_end(&engine, session).await });
    let beside = other.p99().await;
    busy.abort();
    assert!(beside <= 2 * alone, "{beside:?} beside a busy host, {alone:?} alone");
}
