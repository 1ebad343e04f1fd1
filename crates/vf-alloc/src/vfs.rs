//! All VFs, found by number, by device and by holder.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use ahash::RandomState;

use crate::{
    Device, FunctionId, HostId, VfFacts,
    slot::{Slot, Stage},
};

/// Whatever changes a VF's device or holder goes through this type, which finds VFs by them.
#[derive(Debug)]
pub(crate) struct Vfs<K> {
    slots: BTreeMap<FunctionId, Slot<K>>,
    by_key: HashMap<K, FunctionId, RandomState>,
    by_device: HashMap<HostId, HashMap<Device, FunctionId>>,
    /// The VFs that have ports on this DPU. `None`: nobody has told, and all are taken to have one.
    ports: Option<BTreeSet<FunctionId>>,
}

impl<K: Clone + Eq + Hash> Vfs<K> {
    pub(crate) fn new() -> Self {
        Self {
            slots: BTreeMap::new(),
            by_key: HashMap::default(),
            by_device: HashMap::new(),
            ports: None,
        }
    }

    /// In the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Slot<K>> {
        self.slots.values()
    }

    pub(crate) fn get(&self, vf: FunctionId) -> Option<&Slot<K>> {
        self.slots.get(&vf)
    }

    pub(crate) fn get_mut(&mut self, vf: FunctionId) -> Option<&mut Slot<K>> {
        self.slots.get_mut(&vf)
    }

    /// The slot of `vf`, made if need be.
    pub(crate) fn slot(&mut self, vf: FunctionId) -> &mut Slot<K> {
        let ports = &self.ports;
        self.slots.entry(vf).or_insert_with(|| {
            let has_port = ports.as_ref().is_none_or(|ports| ports.contains(&vf));
            Slot::new(vf, has_port)
        })
    }

    pub(crate) fn of_key(&self, key: &K) -> Option<&Slot<K>> {
        self.slots.get(self.by_key.get(key)?)
    }

    pub(crate) fn of_key_mut(&mut self, key: &K) -> Option<&mut Slot<K>> {
        self.slots.get_mut(self.by_key.get(key)?)
    }

    pub(crate) fn of_device(&self, host: HostId, device: &Device) -> Option<&Slot<K>> {
        self.slots.get(self.by_device.get(&host)?.get(device)?)
    }

    /// Takes note of what a host says of a VF, which may have become another one's, or moved.
    pub(crate) fn learn(&mut self, vf: FunctionId, facts: VfFacts) -> &Slot<K> {
        self.forget_device(vf);
        self.by_device.entry(facts.host).or_default().insert(facts.device.clone(), vf);
        let slot = self.slot(vf);
        slot.learn(facts);
        slot
    }

    fn forget_device(&mut self, vf: FunctionId) {
        let Some(facts) = self.slots.get(&vf).and_then(Slot::facts) else { return };
        let Some(of_host) = self.by_device.get_mut(&facts.host) else { return };
        // Another VF may be there by now.
        if of_host.get(&facts.device) == Some(&vf) {
            of_host.remove(&facts.device);
        }
    }

    pub(crate) fn hold(&mut self, vf: FunctionId, key: K, stage: Stage) -> &Slot<K> {
        self.by_key.insert(key.clone(), vf);
        let slot = self.slot(vf);
        slot.hold(key, stage);
        slot
    }

    /// Ends `key`'s hold.
    pub(crate) fn let_go(&mut self, key: &K) -> Option<&mut Slot<K>> {
        let vf = self.by_key.remove(key)?;
        let slot = self.slots.get_mut(&vf)?;
        slot.let_go();
        Some(slot)
    }

    pub(crate) fn set_ports(&mut self, ports: BTreeSet<FunctionId>) {
        for (vf, slot) in &mut self.slots {
            slot.set_port(ports.contains(vf));
        }
        self.ports = Some(ports);
    }
}
