//! The VFs that the DPU has promised in a session: it gives them to nobody but who names one of them.

use offload_proto::v1;
use vf_alloc::{Device, VfPromise};

use crate::agent::vfs::Claimed;

/// Those that no ADD has taken, in the order in which the DPU has told of them.
#[derive(Debug, Default)]
pub(super) struct Promises {
    vfs: Vec<PromisedVf>,
    /// The session is about to be over: what was promised in it counts no more.
    is_closed: bool,
}

/// A VF that may be taken.
#[derive(Debug)]
pub(in crate::agent) struct PromisedVf {
    promise: VfPromise,
    /// The pools out of which an ADD may take it that does not name it.
    pub pools: Vec<String>,
}

impl PromisedVf {
    pub(in crate::agent) const fn device(&self) -> &Device {
        &self.promise.device
    }
}

impl Promises {
    /// The DPU has promised these, besides those of before.
    pub(super) fn note(&mut self, told: v1::Promises) {
        if self.is_closed {
            return;
        }
        for v1::PromisedVf { promise, pools } in told.vfs {
            let v1::VfPromise { device, number } = promise.unwrap_or_default();
            let promise = VfPromise { device: device.into(), number };
            // What was told of it before is good no more.
            self.vfs.retain(|vf| vf.promise.device != promise.device);
            self.vfs.push(PromisedVf { promise, pools });
        }
    }

    /// Takes the first one that is wanted and that can be claimed.
    pub(super) fn take(
        &mut self,
        is_wanted: impl Fn(&PromisedVf) -> bool,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfPromise, Claimed)> {
        let mut wanted = self.vfs.iter().enumerate().filter(|(_, vf)| is_wanted(vf));
        let (place, claimed) = wanted.find_map(|(place, vf)| Some((place, claim(vf.device())?)))?;
        Some((self.vfs.remove(place).promise, claimed))
    }

    pub(super) fn has(&self, is_wanted: impl Fn(&PromisedVf) -> bool) -> bool {
        self.vfs.iter().any(is_wanted)
    }

    /// Nothing is taken any more.
    pub(super) fn close(&mut self) {
        *self = Self { is_closed: true, ..Self::default() };
    }
}
