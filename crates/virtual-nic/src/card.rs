//! A card that is plugged in, and behaves like one.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use netlink::{Error, Link, LinkEvent, LinkMonitor, MacAddress, Request, Rtnl, VethEnd};
use vf_alloc::FunctionId;

use crate::{
    CardError, Namespaces, Plan, UplinkWireAlias, VirtualVf,
    netdevsim::{Device, uplink_label},
    parsed,
    plan::{FIRST_MTU, first_mac, vf_name},
    plug::{finish_checksums, label, label_inner, make_pair, plug, unplug},
    vf_of_inner, wires,
};

/// How soon what could not be put back is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A card that is plugged in.
///
/// A VF of a real card falls back to the host when the namespace that it is in ends: switched off
/// and without addresses, but with the name, MAC address and MTU that it had there. A veth end dies
/// instead, and its other end with it. [`Card::run`] puts both back, so it has to know what the VF
/// was like when it died. It watches all namespaces that the DPU's has a number for, and makes sure
/// that those of the VFs have one, but never opens them: that would keep them from ending. A VF
/// that is in a namespace for less than the card's look at it takes comes back as it was before.
///
/// Representors of a simulated device may go and come without their VFs, as when somebody changes
/// the mode of the eswitch and back. [`Card::run`] joins the new ones, and a new uplink.
#[derive(Debug)]
pub struct Card {
    namespaces: Namespaces,
    plan: Plan,
    host: Rtnl,
    dpu: Rtnl,
    /// What has the representors, unless the pairs' inner ends are.
    device: Option<Device>,
    vfs: BTreeMap<FunctionId, Vf>,
    /// VFs that died and could not be put back yet.
    lost: BTreeSet<FunctionId>,
}

/// What is known of a VF.
#[derive(Clone, Debug)]
struct Vf {
    /// The index of its pair's inner end.
    inner: u32,
    /// The index of the representor that the inner end was joined to, if it is not one itself.
    representor: Option<u32>,
    /// Its index where it was last seen, if it ever was.
    index: Option<u32>,
    /// Its name there.
    name: String,
    mac: Option<MacAddress>,
    mtu: u32,
    alternative_names: Vec<String>,
}

impl Vf {
    /// What a VF is like when it is made.
    fn new(id: FunctionId, inner: u32, namespaces: &Namespaces) -> Self {
        Self {
            inner,
            representor: None,
            index: None,
            name: vf_name(id),
            mac: Some(first_mac(id, namespaces)),
            mtu: FIRST_MTU,
            alternative_names: Vec::new(),
        }
    }

    fn learn(&mut self, link: &Link) {
        tracing::debug!(name = link.name, index = link.index, "seen");
        self.index = Some(link.index);
        self.name.clone_from(&link.name);
        self.mac = link.mac;
        self.mtu = link.mtu;
        self.alternative_names.clone_from(&link.alternative_names);
    }
}

impl Card {
    /// Plugs a card in: all of it, or nothing.
    ///
    /// # Errors
    /// When there is one already, a name is taken, or the kernel refuses.
    pub fn plug(namespaces: Namespaces, plan: Plan) -> Result<Self, CardError> {
        plug(&namespaces, &plan)?;
        let mut card = Self {
            host: Rtnl::open_in(&namespaces.host)?,
            dpu: Rtnl::open_in(&namespaces.dpu)?,
            namespaces,
            plan,
            device: None,
            vfs: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        card.learn_all()?;
        Ok(card)
    }

    /// Pulls the card out and plugs it in again: all its links die, wherever they are, and are new.
    ///
    /// # Errors
    /// When a name is taken or the kernel refuses; then the card is out.
    pub fn reset(&mut self) -> Result<(), CardError> {
        unplug(&self.namespaces, self.plan.controller)?;
        plug(&self.namespaces, &self.plan)?;
        self.learn_all()?;
        Ok(())
    }

    /// Pulls the card out.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn unplug(self) -> Result<usize, CardError> {
        unplug(&self.namespaces, self.plan.controller)
    }

    /// Puts back VFs whose namespaces end, for ever. To be called within a Tokio runtime. May be
    /// dropped and called again.
    ///
    /// # Errors
    /// When the links can't be watched.
    pub async fn run(&mut self) -> Result<Infallible, CardError> {
        let mut monitor = LinkMonitor::open_with_neighbours(&self.namespaces.dpu)?;
        self.look_again()?;
        loop {
            tokio::select! {
                event = monitor.next() => self.take_in_or_warn(event?),
                () = tokio::time::sleep(RETRY_AFTER), if !self.lost.is_empty() => self.put_back_lost(),
            }
        }
    }

    /// Learns what all VFs are like right after they were made.
    fn learn_all(&mut self) -> Result<(), Error> {
        self.vfs.clear();
        self.lost.clear();
        let links = self.dpu.links()?;
        for link in &links {
            let id = vf_of_inner(link.alias.as_deref());
            if let Some(id) = id.filter(|id| id.pf.controller == self.plan.controller) {
                self.vfs.insert(id, Vf::new(id, link.index, &self.namespaces));
            }
        }
        self.device = Device::of_controller(self.plan.controller, &links);
        for link in &links {
            if let Some(vf) = self.represented(link).and_then(|id| self.vfs.get_mut(&id)) {
                vf.representor = Some(link.index);
            }
        }
        for link in self.host.links()? {
            self.learn(&link);
        }
        Ok(())
    }

    /// The VF that a link represents on the simulated device.
    fn represented(&self, link: &Link) -> Option<FunctionId> {
        self.device.as_ref()?.represented(link)
    }

    /// Learns what the VF, if it is one, is like now.
    fn learn(&mut self, link: &Link) {
        if let Some(VirtualVf { id, .. }) = parsed(link.alias.as_deref())
            && let Some(vf) = self.vfs.get_mut(&id)
        {
            vf.learn(link);
        }
    }

    /// A look that the kernel refuses is no reason to pull the card out: the next may succeed.
    fn take_in_or_warn(&mut self, event: LinkEvent) {
        if let Err(error) = self.take_in(event) {
            tracing::warn!(%error, "an event was not taken in");
        }
    }

    fn take_in(&mut self, event: LinkEvent) -> Result<(), Error> {
        match event {
            LinkEvent::Changed(link) => self.look_at(&link)?,
            LinkEvent::Gone { index, alias, .. } => {
                if let Some(id) = vf_of_inner(alias.as_deref()) {
                    self.inner_gone(id, index);
                } else if let Some(VirtualVf { id, .. }) = parsed(alias.as_deref()) {
                    self.look_for(id)?;
                }
            }
            LinkEvent::PortChanged { .. } => {}
            LinkEvent::Missed => self.look_again()?,
        }
        Ok(())
    }

    fn look_at(&mut self, link: &Link) -> Result<(), Error> {
        if let Some(id) = vf_of_inner(link.alias.as_deref()) {
            return self.look_behind(id, link);
        }
        if let Some(id) = self.represented(link) {
            return self.join(id, link);
        }
        if self.device.as_ref().is_some_and(|device| device.is_new_uplink(link)) {
            return self.take_up_uplink(link);
        }
        self.learn(link);
        Ok(())
    }

    /// Joins a representor to its VF's wire, unless it has been.
    fn join(&mut self, id: FunctionId, representor: &Link) -> Result<(), Error> {
        let Some(vf) = self.vfs.get_mut(&id) else { return Ok(()) };
        if vf.representor == Some(representor.index) {
            return Ok(());
        }
        // A wire that is not there is joined once it is put back.
        if let Some(wire) = self.dpu.link_by_index(vf.inner)? {
            wires::join(representor.index, &wire, &self.namespaces.dpu, &mut self.dpu)?;
        }
        vf.representor = Some(representor.index);
        tracing::info!(vf = %id, representor = representor.name, "joined");
        Ok(())
    }

    /// Gives an uplink that the kernel has made anew its name and its wire.
    fn take_up_uplink(&mut self, uplink: &Link) -> Result<(), Error> {
        self.dpu.change_link(uplink.index, &uplink_label())?;
        let is_wire = |link: &&Link| parsed::<UplinkWireAlias>(link.alias.as_deref()).is_some();
        match self.dpu.links()?.iter().find(is_wire) {
            Some(wire) => wires::join(uplink.index, wire, &self.namespaces.dpu, &mut self.dpu),
            None => Ok(()),
        }
    }

    /// Learns what the VF behind an inner end is like. That gives its namespace a number in the
    /// DPU's, so that from now on its events come, too.
    fn look_behind(&mut self, id: FunctionId, inner: &Link) -> Result<(), Error> {
        if !self.vfs.contains_key(&id) {
            return Ok(());
        }
        let found = self.dpu.peer_of(inner)?;
        if let (Some(link), Some(vf)) = (found, self.vfs.get_mut(&id)) {
            vf.learn(&link);
        }
        Ok(())
    }

    /// Looks where a VF is that went away, if it did not die.
    fn look_for(&mut self, id: FunctionId) -> Result<(), Error> {
        let Some(vf) = self.vfs.get(&id) else { return Ok(()) };
        match self.dpu.link_by_index(vf.inner)? {
            Some(inner) => self.look_behind(id, &inner),
            None => Ok(()),
        }
    }

    /// Looks at all VFs: any number of events were missed.
    fn look_again(&mut self) -> Result<(), Error> {
        let mut present = BTreeSet::new();
        for link in self.dpu.links()? {
            present.extend(vf_of_inner(link.alias.as_deref()));
            self.look_at(&link)?;
        }
        self.lost = self.vfs.keys().copied().filter(|id| !present.contains(id)).collect();
        self.put_back_lost();
        Ok(())
    }

    fn inner_gone(&mut self, id: FunctionId, index: u32) {
        // An event about the inner end before this one may come late.
        if self.vfs.get(&id).is_some_and(|vf| vf.inner == index) {
            self.lost.insert(id);
            self.put_back_lost();
        }
    }

    fn put_back_lost(&mut self) {
        for id in std::mem::take(&mut self.lost) {
            match self.put_back(id) {
                Ok(()) => tracing::info!(vf = %id, "put back"),
                Err(error) => {
                    tracing::warn!(vf = %id, %error, "not put back yet");
                    self.lost.insert(id);
                }
            }
        }
    }

    /// Puts a VF that died back into the host's namespace, as the kernel does with a real one, and
    /// the inner end into the DPU's. May be tried again after it failed half-way.
    fn put_back(&mut self, id: FunctionId) -> Result<(), Error> {
        let Some(vf) = self.vfs.get(&id).cloned() else { return Ok(()) };
        let name = self.plan.kind.inner_name(id);
        if self.dpu.link_by_name(&name)?.is_none() {
            self.make_again(id, &vf)?;
        }
        let Some(inner) = self.dpu.link_by_name(&name)? else { return Ok(()) };
        let Some(link) = self.dpu.peer_of(&inner)? else { return Ok(()) };
        if let Some(representor) = vf.representor {
            self.join_again(representor, &inner)?;
        }
        if self.plan.whole_checksums {
            finish_checksums(&self.namespaces.host, &link.name);
        }
        self.name_again(&link, &vf)?;
        self.host.change_link(link.index, &label(&VirtualVf::new(id)))?;
        let mut vf = Vf { inner: inner.index, ..vf };
        vf.learn(&link);
        self.vfs.insert(id, vf);
        Ok(())
    }

    /// Joins the new wire to the representor, which stayed. If it did not, the next will be joined.
    fn join_again(&mut self, representor: u32, wire: &Link) -> Result<(), Error> {
        let joined = wires::join(representor, wire, &self.namespaces.dpu, &mut self.dpu);
        joined.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
    }

    fn make_again(&mut self, id: FunctionId, vf: &Vf) -> Result<(), Error> {
        let mut end = VethEnd::new(self.free_name(vf)?).mtu(vf.mtu);
        if let Some(mac) = vf.mac {
            end = end.mac(mac);
        }
        if let Some(index) = vf.index
            && self.host.link_by_index(index)?.is_none()
        {
            end = end.index(index);
        }
        self.host.batch(&[make_pair(id, end, self.plan.kind, &self.namespaces)])?;
        self.dpu.batch(&[label_inner(id, self.plan.kind)])
    }

    /// The name of a VF that falls back: the one it has, or one made of its index, or any.
    fn free_name(&mut self, vf: &Vf) -> Result<String, Error> {
        let by_index = vf.index.map(|index| format!("dev{index}"));
        for name in [Some(vf.name.clone()), by_index].into_iter().flatten() {
            if self.host.link_by_name(&name)?.is_none() {
                return Ok(name);
            }
        }
        Ok("dev%d".to_owned())
    }

    /// Gives a VF its alternative names again, except those that are taken.
    fn name_again(&mut self, link: &Link, vf: &Vf) -> Result<(), Error> {
        for name in &vf.alternative_names {
            match self.host.change(Request::add_alternative_name(link.index, name)) {
                Err(error) if !error.is_exists() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
