//! A host's hello and inventory.

use std::collections::HashSet;

use mtls::ConnectionNumber;
use offload_proto::{Failure, PROTOCOL_HIGHEST, PROTOCOL_LOWEST, Reason, capability, v1};
use vf_alloc::PfId;

use super::{
    attachment_id, device, examination::clean, invalid, keys, label, no_such, optional_session,
    shortened,
};
use crate::host::{
    Hello, HostTime, Inventory, LiveAttachment, PhysicalFunction, VfCondition, VirtualFunction,
};
use model::HostName;

/// Maximum number of VFs of a PF; [`MOST_PFS`] limits PFs of a host.
const MOST_VFS: usize = 4096;
const MOST_PFS: usize = 64;

/// Converts a hello; also returns the protocol version that both sides speak.
pub(crate) fn hello(
    host: &HostName,
    connection: ConnectionNumber,
    hello: v1::Hello,
) -> Result<(Hello, u32), Failure> {
    let protocol = negotiate(hello.protocol.unwrap_or_default())?;
    let live = |one: v1::LiveAttachment| {
        Ok(LiveAttachment { id: attachment_id(&one.attachment_id)?, in_pod: one.in_pod })
    };
    let hello = Hello {
        connection,
        agent_version: label("agent_version", hello.agent_version)?,
        boot_id: boot_id(hello.boot_id)?,
        capabilities: capability::common(&hello.capabilities),
        inventory: inventory(&hello.inventory.unwrap_or_default())?,
        live: hello.live.into_iter().map(live).collect::<Result<_, Failure>>()?,
        pending: keys(host, hello.pending)?,
        renewed: optional_session(host, &hello.renewed_session_id)?,
    };
    Ok((hello, protocol))
}

fn negotiate(theirs: v1::ProtocolVersions) -> Result<u32, Failure> {
    let highest = theirs.highest.min(PROTOCOL_HIGHEST);
    if highest >= theirs.lowest.max(PROTOCOL_LOWEST) {
        return Ok(highest);
    }
    Err(Failure::new(
        Reason::Unsupported,
        format!(
            "the agent speaks protocol versions {} to {}, this service {PROTOCOL_LOWEST} to \
             {PROTOCOL_HIGHEST}: upgrade the older of the two",
            theirs.lowest, theirs.highest
        ),
    ))
}

fn boot_id(text: String) -> Result<String, Failure> {
    if text.is_empty() {
        return Err(invalid("boot_id is empty: send the host kernel's boot id"));
    }
    label("boot_id", text)
}

pub(crate) fn inventory(inventory: &v1::Inventory) -> Result<Inventory, Failure> {
    if inventory.pfs.len() > MOST_PFS {
        return Err(invalid(format!(
            "the inventory has {} PFs; at most {MOST_PFS} are possible",
            inventory.pfs.len()
        )));
    }
    let pfs = inventory.pfs.iter().map(physical_function).collect::<Result<Vec<_>, _>>()?;
    let mut seen = HashSet::new();
    match pfs.iter().find(|pf| !seen.insert(pf.id)) {
        Some(twice) => Err(invalid(format!("the inventory has PF {} twice", twice.id))),
        None => Ok(Inventory { as_of: HostTime(inventory.as_of_ns), pfs }),
    }
}

fn physical_function(pf: &v1::PhysicalFunction) -> Result<PhysicalFunction, Failure> {
    let id = PfId::from_numbers(pf.controller, pf.pf).map_err(|error| no_such(&error))?;
    if pf.vfs.len() > MOST_VFS {
        return Err(invalid(format!(
            "PF {id} has {} VFs; at most {MOST_VFS} are possible",
            pf.vfs.len()
        )));
    }
    let vfs = pf.vfs.iter().map(|vf| virtual_function(id, vf)).collect::<Result<Vec<_>, _>>()?;
    let mut seen = HashSet::new();
    if let Some(twice) = vfs.iter().find(|vf| !seen.insert(vf.number)) {
        return Err(invalid(format!("PF {id} has VF {} twice", twice.number)));
    }
    let vendor_id = pci_id("vendor_id", &pf.vendor_id)?;
    Ok(PhysicalFunction { id, vendor_id, device_id: pci_id("device_id", &pf.device_id)?, vfs })
}

fn virtual_function(pf: PfId, vf: &v1::VirtualFunction) -> Result<VirtualFunction, Failure> {
    let condition = match vf.condition() {
        v1::VfCondition::Clean => VfCondition::Clean,
        v1::VfCondition::InUse if vf.use_by_host.is_empty() => VfCondition::InUse,
        v1::VfCondition::InUse => VfCondition::UsedByHost(clean(&vf.use_by_host)),
        v1::VfCondition::Missing => VfCondition::Missing,
        v1::VfCondition::Held => VfCondition::Held,
        v1::VfCondition::Unspecified if vf.condition == 0 => {
            return Err(invalid(format!("VF {} has no condition", vf.vf)));
        }
        // A condition of a later version: the VF must not be used.
        v1::VfCondition::Unspecified => VfCondition::Missing,
    };
    let number = pf.function(vf.vf).map_err(|error| no_such(&error))?.vf;
    Ok(VirtualFunction { number, device: device(&vf.device)?, condition })
}

fn pci_id(what: &str, text: &str) -> Result<u16, Failure> {
    let is_hex = text.len() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parsed = is_hex.then(|| u16::from_str_radix(text, 16).ok()).flatten();
    let refuse = || invalid(format!("{what} {} is not four hexadecimal digits", shortened(text)));
    parsed.ok_or_else(refuse)
}
