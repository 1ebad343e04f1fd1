//! The names of further interfaces that nobody has asked for: their networks, which are the DPU's, say how they begin.

use std::collections::BTreeSet;

use offload_proto::{Failure, Reason};

use super::doors::Doors;
use crate::protocol::{AddRequest, Key};

/// The ADD with the names that its interfaces get. One that is there keeps the name that it has, whatever its network
/// says by now.
///
/// # Errors
/// The DPU can't be reached, or two interfaces would have one name.
pub(super) async fn named(doors: &Doors, asked: &AddRequest) -> Result<AddRequest, Failure> {
    let mut request = asked.clone();
    if request.further.iter().all(|one| one.place.is_none()) {
        return Ok(request);
    }
    let there = doors.vfs.records().led_by(&request.key);
    let session = doors.dpu.session().current(doors.timeouts.reconnect()).await?;
    for one in &mut request.further {
        let Some(place) = one.place else { continue };
        if let Some(record) = there.iter().find(|there| there.attachment.network == one.network) {
            one.interface_name = record.key().interface_name;
        } else if let Some(prefix) = session.interface_prefix(&one.network) {
            one.interface_name = format!("{prefix}{place}");
        }
    }
    check_distinct(&request.key, request.interface_names())?;
    Ok(request)
}

fn check_distinct(lead: &Key, names: Vec<String>) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find_map(|name| seen.replace(name)) {
        None => Ok(()),
        Some(name) => {
            let container = &lead.container_id;
            let message = format!(
                "two interfaces of {container} would be {name}, by what is asked for and by the interface_prefix of \
                 their networks: ask for another name"
            );
            Err(Failure::new(Reason::InvalidRequest, message))
        }
    }
}
