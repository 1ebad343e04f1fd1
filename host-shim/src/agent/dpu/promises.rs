//! The VFs that the DPU has promised in a session: it gives them to nobody but who names one of them.

use std::collections::HashMap;

use offload_proto::v1;
use vf_alloc::Device;

use crate::agent::vfs::Claimed;

/// Those that no ADD has taken yet, in the order in which the DPU would give them out.
#[derive(Debug, Default)]
pub(super) struct Promises {
    vfs: Vec<PromisedVf>,
    /// The number of the promise of each VF that was taken last. One that is heard of later was told before.
    taken: HashMap<Device, u64>,
    /// The session is about to be over: what was promised in it counts no more.
    is_closed: bool,
}

/// A VF that may be taken.
#[derive(Debug)]
pub(in crate::agent) struct PromisedVf {
    pub device: Device,
    number: u64,
    /// The pools that it is in.
    pub pools: Vec<String>,
}

impl Promises {
    /// The DPU has promised these, besides those of before.
    pub(super) fn note(&mut self, told: v1::Promises) {
        if self.is_closed {
            return;
        }
        for v1::PromisedVf { device, number, pools } in told.vfs {
            let device = Device::from(device);
            if self.taken.get(&device).is_none_or(|taken| *taken < number) {
                self.lose(&device);
                self.vfs.push(PromisedVf { device, number, pools });
            }
        }
    }

    /// Takes the first one that is wanted and that can be claimed, with the number of its promise.
    pub(super) fn take(
        &mut self,
        is_wanted: impl Fn(&PromisedVf) -> bool,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(Claimed, u64)> {
        let mut wanted = self.vfs.iter().enumerate().filter(|(_, vf)| is_wanted(vf));
        let (place, claimed) = wanted.find_map(|(place, vf)| Some((place, claim(&vf.device)?)))?;
        let PromisedVf { device, number, .. } = self.vfs.remove(place);
        self.taken.insert(device, number);
        Some((claimed, number))
    }

    pub(super) fn has(&self, is_wanted: impl Fn(&PromisedVf) -> bool) -> bool {
        self.vfs.iter().any(is_wanted)
    }

    /// The DPU is told that this VF is not to be had: it says when it may be taken again.
    pub(super) fn lose(&mut self, device: &Device) {
        self.vfs.retain(|vf| vf.device != *device);
    }

    /// Nothing is taken any more.
    pub(super) fn close(&mut self) {
        *self = Self { is_closed: true, ..Self::default() };
    }
}
