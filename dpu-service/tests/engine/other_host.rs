//! A second host next to that of a [`World`].

use std::sync::Arc;

use dpu_service::{
    attachments::{Configuration, Depth, Detach, Engine},
    host::{Asked, Hello, HostTime, Inventory, PhysicalFunction, VfCondition, VirtualFunction},
    sessions::Session,
};
use model::{AttachSpec, AttachmentKey, AttachmentView, HostName};
use offload_proto::Failure;
use vf_alloc::{FunctionId, PfId};

use crate::world::{World, configuration, detach_of, hello, network, pool, requesting, spec};

/// `node-2` with four VFs of PF 1 in a pool of their own.
pub(crate) struct OtherHost {
    engine: Arc<Engine>,
    pub(crate) session: Session,
}

pub(crate) fn other() -> HostName {
    HostName("node-2".into())
}

/// The configuration of a [`World`] with a pool of the other host's VFs and a network `green` on it.
pub(crate) fn for_both() -> Configuration {
    let mut file = configuration();
    file.pools.push(pool("second", "p1"));
    let green = "name = 'green'\npool = 'second'\n[[subnets]]\ncidr = '10.2.0.0/16'\n";
    file.networks.push(network(green));
    file
}

/// An attach of the other host to `green`.
pub(crate) fn on_green(container: &str) -> AttachSpec {
    let key = AttachmentKey { host: other(), ..spec(container).key };
    AttachSpec { key, ..requesting(spec(container), |it| it.network = "green".into()) }
}

impl OtherHost {
    pub(crate) async fn connect(world: &World) -> Self {
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

    pub(crate) async fn attach(&self, spec: AttachSpec) -> Result<AttachmentView, Failure> {
        let asked = Asked { session: self.session.id, as_of: HostTime::default() };
        self.engine.attach(spec, asked).await
    }

    pub(crate) async fn detach(&self, spec: AttachSpec) {
        self.engine.detach(Detach { key: spec.key, ..detach_of("") }).await.unwrap();
    }
}
