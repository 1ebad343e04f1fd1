//! A pool of rtnetlink sockets: one for each call in progress.

use netlink::{Netns, Rtnl};
use parking_lot::Mutex;

use crate::driver::Refused;

/// The sockets of one network namespace. A call that finds all sockets in use opens another one, so it waits only
/// for the kernel. The pool keeps as many sockets as calls were in progress at once.
#[derive(Debug)]
pub(super) struct Sockets {
    netns: Netns,
    idle: Mutex<Vec<Rtnl>>,
}

impl Sockets {
    /// A pool in the calling thread's namespace. Later callers may run in other namespaces; their sockets open
    /// here.
    pub(super) fn open() -> Result<Self, Refused> {
        let netns = Netns::current();
        let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
        Ok(Self { netns, idle: Mutex::default() })
    }

    /// Calls `work` with a socket that no other call uses during that time.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&mut Rtnl) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let idle = self.idle.lock().pop();
        let mut rtnl = idle.map_or_else(|| self.another(), Ok)?;
        let outcome = work(&mut rtnl);
        self.idle.lock().push(rtnl);
        outcome
    }

    fn another(&self) -> Result<Rtnl, Refused> {
        Rtnl::open_in(&self.netns).map_err(|error| Refused::new("ask the kernel", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_use_two_sockets() {
        let sockets = Sockets::open().unwrap();
        let links = |rtnl: &mut Rtnl| rtnl.links().map_err(|error| Refused::new("look", error));
        let both = |rtnl: &mut Rtnl| {
            links(rtnl)?;
            sockets.with(links)
        };
        for _ in 0..2 {
            sockets.with(both).unwrap();
            assert_eq!(sockets.idle.lock().len(), 2);
        }
    }
}
