//! All VFs, indexed by number, device and holder.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use ahash::RandomState;

use crate::{
    Device, FunctionId, HostId, VfFacts,
    slot::{Hold, Slot, SlotNumber, Stage},
};

/// The VFs. All changes of a VF's device or holder go through this type, which keeps the indexes.
#[derive(Debug)]
pub(crate) struct Vfs<K> {
    /// By slot number. Slots are never removed.
    slots: Vec<Slot<K>>,
    by_vf: BTreeMap<FunctionId, SlotNumber>,
    by_key: HashMap<K, SlotNumber, RandomState>,
    by_device: HashMap<HostId, HashMap<Device, SlotNumber>>,
    /// The VFs that have ports on this DPU. `None`: unknown, so all count as having one.
    ports: Option<BTreeSet<FunctionId>>,
}

impl<K: Clone + Eq + Hash> Vfs<K> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            by_vf: BTreeMap::new(),
            by_key: HashMap::default(),
            by_device: HashMap::new(),
            ports: None,
        }
    }

    /// All slots in numeric order of their VFs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Slot<K>> {
        self.by_vf.values().map(|number| &self.slots[number.0])
    }

    pub(crate) fn get(&self, vf: FunctionId) -> Option<&Slot<K>> {
        self.by_vf.get(&vf).map(|number| &self.slots[number.0])
    }

    pub(crate) fn get_mut(&mut self, vf: FunctionId) -> Option<&mut Slot<K>> {
        self.by_vf.get(&vf).map(|number| &mut self.slots[number.0])
    }

    pub(crate) fn at(&self, number: SlotNumber) -> &Slot<K> {
        &self.slots[number.0]
    }

    pub(crate) fn at_mut(&mut self, number: SlotNumber) -> &mut Slot<K> {
        &mut self.slots[number.0]
    }

    /// The slot of `vf`. Adds one if there is none.
    pub(crate) fn slot(&mut self, vf: FunctionId) -> &mut Slot<K> {
        let number = *self.by_vf.entry(vf).or_insert(SlotNumber(self.slots.len()));
        if number.0 == self.slots.len() {
            let has_port = self.ports.as_ref().is_none_or(|ports| ports.contains(&vf));
            self.slots.push(Slot::new(number, vf, has_port));
        }
        &mut self.slots[number.0]
    }

    pub(crate) fn of_key(&self, key: &K) -> Option<&Slot<K>> {
        self.by_key.get(key).map(|number| &self.slots[number.0])
    }

    pub(crate) fn of_key_mut(&mut self, key: &K) -> Option<&mut Slot<K>> {
        self.by_key.get(key).map(|number| &mut self.slots[number.0])
    }

    pub(crate) fn of_device(&self, host: HostId, device: &Device) -> Option<&Slot<K>> {
        let number = self.by_device.get(&host)?.get(device)?;
        Some(&self.slots[number.0])
    }

    /// Records a host's facts about a VF. The VF may have moved to another host or device.
    pub(crate) fn learn(&mut self, vf: FunctionId, facts: VfFacts) -> &Slot<K> {
        let number = self.slot(vf).number;
        self.forget_device(number);
        self.by_device.entry(facts.host).or_default().insert(facts.device.clone(), number);
        let slot = &mut self.slots[number.0];
        slot.facts = Some(facts);
        slot
    }

    fn forget_device(&mut self, number: SlotNumber) {
        let Some(facts) = &self.slots[number.0].facts else { return };
        let Some(of_host) = self.by_device.get_mut(&facts.host) else { return };
        // Another VF may have this device now.
        if of_host.get(&facts.device) == Some(&number) {
            of_host.remove(&facts.device);
        }
    }

    pub(crate) fn hold(&mut self, number: SlotNumber, key: K, stage: Stage) -> &Slot<K> {
        self.by_key.insert(key.clone(), number);
        let slot = &mut self.slots[number.0];
        slot.hold = Some(Hold { key, stage });
        slot
    }

    /// Ends `key`'s hold.
    pub(crate) fn clear_hold(&mut self, key: &K) -> Option<&mut Slot<K>> {
        let number = self.by_key.remove(key)?;
        let slot = &mut self.slots[number.0];
        slot.hold = None;
        Some(slot)
    }

    pub(crate) fn set_ports(&mut self, ports: BTreeSet<FunctionId>) {
        for slot in &mut self.slots {
            slot.has_port = ports.contains(&slot.vf);
        }
        self.ports = Some(ports);
    }
}
