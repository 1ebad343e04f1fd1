//! Refusals of the kernel or card, and what is at fault.

use std::{error::Error, fmt};

use nix::errno::Errno;

/// What is at fault for a refusal. Only the port's own faults count towards its VF's quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The port, as far as known: another port may work.
    Port,
    /// No port could do it: the setting is unsupported, something that all ports share is missing, or the kernel or
    /// this program lacks resources.
    Elsewhere,
    /// The fabric has no room for another port.
    FabricFull,
    /// The fabric is unavailable: its bridge or its daemon.
    FabricAway,
}

/// An operation that the kernel or card refused.
#[derive(Debug)]
pub struct Refused {
    doing: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    fault: Fault,
    is_partial: bool,
}

impl Refused {
    /// The kernel's `source` refused `doing`, such as `set the MTU of pf0vf3 to 9000`. The errno decides the fault.
    pub fn new(doing: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        let errno = source.downcast_ref::<netlink::Error>().and_then(netlink::Error::errno);
        let fault = errno.map_or(Fault::Port, fault_of_errno);
        Self { doing: doing.into(), source: Some(source), fault, is_partial: false }
    }

    /// A refusal that `sentence` describes completely. The port is at fault.
    pub fn because(sentence: impl Into<String>) -> Self {
        Self { doing: sentence.into(), source: None, fault: Fault::Port, is_partial: false }
    }

    /// Sets what is at fault.
    #[must_use]
    pub fn blamed_on(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// Marks a refusal that does not keep ports from being programmed.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// Whether ports can be programmed despite it.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// What is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

/// Derives the fault from the errno. "No such device" is no fault of the port: the next survey finds the link missing.
fn fault_of_errno(errno: Errno) -> Fault {
    use Errno::{
        E2BIG, EACCES, EINVAL, EMFILE, EMSGSIZE, ENFILE, ENOBUFS, ENODEV, ENOENT, ENOMEM, ENOSPC,
        ENXIO, EOPNOTSUPP, EPERM, ERANGE, ESRCH, EXFULL,
    };
    match errno {
        EXFULL => Fault::FabricFull,
        EINVAL | EOPNOTSUPP | ERANGE | E2BIG | EMSGSIZE => Fault::Elsewhere,
        ENODEV | ENXIO | ENOENT | ESRCH => Fault::Elsewhere,
        EPERM | EACCES | ENOMEM | ENOBUFS | ENOSPC | EMFILE | ENFILE => Fault::Elsewhere,
        _ => Fault::Port,
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(_) => write!(out, "can't {}", self.doing),
            None => out.write_str(&self.doing),
        }
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_of_a_port_follows_from_errno() {
        for errno in [Errno::EBUSY, Errno::EIO, Errno::EREMOTEIO, Errno::ETIMEDOUT] {
            assert_eq!(fault_of_errno(errno), Fault::Port, "{errno}");
        }
        for errno in [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ENOMEM, Errno::EPERM, Errno::ENODEV]
        {
            assert_eq!(fault_of_errno(errno), Fault::Elsewhere, "{errno}");
        }
        assert_eq!(fault_of_errno(Errno::EXFULL), Fault::FabricFull);
    }
}
