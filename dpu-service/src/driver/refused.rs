//! What the kernel or card refused, and whose fault that is.

use std::{error::Error, fmt};

use nix::errno::Errno;

/// Whose fault a refusal is: that of the port that was to be programmed counts against its VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The port's own, as far as can be told: another might do.
    Port,
    /// What was asked for can't be had on any port, or what all ports share is not there, or the
    /// kernel or this program lacks the means.
    Elsewhere,
    /// The fabric takes no more ports.
    FabricFull,
    /// The fabric is not there: its bridge, or the daemon that keeps it.
    FabricAway,
}

/// What the kernel or card refused.
#[derive(Debug)]
pub struct Refused {
    doing: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    fault: Fault,
    is_partial: bool,
}

impl Refused {
    /// The kernel's `source` refused `doing`, such as `set the MTU of pf0vf3 to 9000`.
    pub fn new(doing: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        let errno = source.downcast_ref::<netlink::Error>().and_then(netlink::Error::errno);
        let fault = errno.map_or(Fault::Port, fault_told_by);
        Self { doing: doing.into(), source: Some(source), fault, is_partial: false }
    }

    /// What went wrong is all in `sentence`, and is the port's fault.
    pub fn because(sentence: impl Into<String>) -> Self {
        Self { doing: sentence.into(), source: None, fault: Fault::Port, is_partial: false }
    }

    /// The same, as the fault of somebody else.
    #[must_use]
    pub fn blamed_on(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// The same, of a part of what all ports share without which ports can be programmed all the same.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// Whether ports can be programmed all the same.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

/// As the kernel's number tells. A link that is gone is found missing by the next look at all of them.
fn fault_told_by(errno: Errno) -> Fault {
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
    fn only_what_another_port_might_do_is_a_ports_own_fault() {
        for errno in [Errno::EBUSY, Errno::EIO, Errno::EREMOTEIO, Errno::ETIMEDOUT] {
            assert_eq!(fault_told_by(errno), Fault::Port, "{errno}");
        }
        for errno in [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ENOMEM, Errno::EPERM, Errno::ENODEV]
        {
            assert_eq!(fault_told_by(errno), Fault::Elsewhere, "{errno}");
        }
        assert_eq!(fault_told_by(Errno::EXFULL), Fault::FabricFull);
    }
}
