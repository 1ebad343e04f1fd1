//! What an ADD asks for: its form, the names that its interfaces get, and who makes which.

use std::time::Instant;

use offload_proto::{
    Failure, Reason,
    form::{INTERFACE_NAMES, MOST_INTERFACES, is_container_id, is_interface_name},
};

use super::{
    doors::Doors,
    led::{LockedKeys, lock_for_add},
    naming::{check_distinct, named},
    release::take_back_all,
};
use crate::{agent::delegates::Delegation, protocol::AddRequest};

/// That names can be names, by whichever door they come: folders and files are called by them.
pub(super) fn check_form(asked: &AddRequest) -> Result<(), Failure> {
    let invalid = |message| Err(Failure::new(Reason::InvalidRequest, message));
    if !is_container_id(&asked.key.container_id) {
        return invalid(format!("{:?} is no valid container id", asked.key.container_id));
    }
    if asked.further.len() >= MOST_INTERFACES {
        return invalid(format!(
            "{} interfaces: {MOST_INTERFACES} at most",
            asked.further.len() + 1
        ));
    }
    match asked.interface_names().iter().find(|name| !is_interface_name(name)) {
        Some(name) => invalid(format!("{name:?} can't name an interface: use {INTERFACE_NAMES}")),
        None => Ok(()),
    }
}

/// The ADD with the names that its interfaces get, and all its keys locked.
pub(super) async fn name_and_lock(
    doors: &Doors,
    asked: &AddRequest,
    deadline: Instant,
) -> Result<(Named, LockedKeys), Failure> {
    loop {
        let (mut own, delegations) = doors.delegates.take_out(asked.clone(), deadline).await?;
        own.further_leases = delegations.iter().filter_map(|one| one.lease.clone()).collect();
        let whole = named(doors, &own).await?;
        let (order, requests) = (order(&whole, &delegations)?, whole.each());
        let keys = delegations.iter().map(|delegation| delegation.key.clone());
        let keys = keys.chain(requests.iter().map(|request| request.key.clone())).collect();
        let keys = lock_for_add(doors, &whole.key, keys).await;
        // The previous holder of the keys may have served this ADD, with the networks' names of that time.
        match named(doors, &own).await {
            Ok(again) if again.interface_names() == whole.interface_names() => {
                return Ok((Named { whole, requests, delegations, order }, keys));
            }
            Ok(_) => {}
            Err(failure) => {
                // An ADD before may have left its own undoing to this one.
                take_back_all(doors, &keys).await;
                return Err(failure);
            }
        }
    }
}

/// The names of all interfaces, as they were asked for.
///
/// # Errors
/// Two would have one name.
fn order(own: &AddRequest, delegations: &[Delegation]) -> Result<Vec<String>, Failure> {
    let mut names = own.interface_names();
    for delegation in delegations {
        // The first one leads, and is in none of the places.
        names.insert(delegation.place + 1, delegation.key.interface_name.clone());
    }
    check_distinct(&own.key, &names)?;
    Ok(names)
}

/// What an ADD asks for, with the names that its interfaces get.
pub(super) struct Named {
    /// What the DPU is asked for.
    pub whole: AddRequest,
    /// Of the DPU, for each interface; the first one leads.
    pub requests: Vec<AddRequest>,
    /// Of other plugins.
    pub delegations: Vec<Delegation>,
    /// The names of all interfaces, as they are answered.
    pub order: Vec<String>,
}
