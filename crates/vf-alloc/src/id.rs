//! Numbers of PFs and VFs.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A physical function by the eswitch's numbers. Shown as `p0`, or `c1p0` on an external controller.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PfId {
    /// The controller: 0 for the local one, 1 and up for external hosts.
    pub controller: u32,
    /// The PF's number.
    pub pf: u16,
}

/// A VF by the eswitch's numbers. Shown as `pf0vf3`, or `c1pf0vf3` on an external controller, which is the kernel's
/// `phys_port_name` of its representor. A scalable function would be another number of its PF.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FunctionId {
    /// The VF's PF.
    #[serde(flatten)]
    pub pf: PfId,
    /// The VF's number within the PF, from 0.
    pub vf: u16,
}

impl PfId {
    /// PF `pf` of the local controller.
    #[must_use]
    pub const fn local(pf: u16) -> Self {
        Self { controller: 0, pf }
    }

    /// A PF from the numbers of a message.
    ///
    /// # Errors
    /// The number exceeds those of PFs.
    pub fn from_numbers(controller: u32, pf: u32) -> Result<Self, NumberError> {
        Ok(Self { controller, pf: number("PF", pf)? })
    }

    /// VF `vf` of this PF, from the number of a message.
    ///
    /// # Errors
    /// The number exceeds those of VFs.
    pub fn function(self, vf: u32) -> Result<FunctionId, NumberError> {
        Ok(FunctionId { pf: self, vf: number("VF", vf)? })
    }
}

impl FunctionId {
    /// VF `vf` of the local controller's PF `pf`.
    #[must_use]
    pub const fn local(pf: u16, vf: u16) -> Self {
        Self { pf: PfId::local(pf), vf }
    }

    /// A VF from the numbers of a message.
    ///
    /// # Errors
    /// A number exceeds those of PFs or VFs.
    pub fn from_numbers(controller: u32, pf: u32, vf: u32) -> Result<Self, NumberError> {
        PfId::from_numbers(controller, pf)?.function(vf)
    }
}

/// A number that no function can have. Messages have wider fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} {number}")]
pub struct NumberError {
    what: &'static str,
    number: u32,
}

fn number(what: &'static str, number: u32) -> Result<u16, NumberError> {
    u16::try_from(number).map_err(|_| NumberError { what, number })
}

fn write_controller(out: &mut fmt::Formatter<'_>, controller: u32) -> fmt::Result {
    if controller == 0 { Ok(()) } else { write!(out, "c{controller}") }
}

impl fmt::Display for PfId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_controller(out, self.controller)?;
        write!(out, "p{}", self.pf)
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_controller(out, self.pf.controller)?;
        write!(out, "pf{}vf{}", self.pf.pf, self.vf)
    }
}

/// The text names no PF or VF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name a {what}, such as {example}")]
pub struct ParseIdError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl ParseIdError {
    fn new(text: &str, what: &'static str, example: &'static str) -> Self {
        Self { text: text.chars().take(40).collect(), what, example }
    }
}

/// Splits `prefix` and the decimal number after it off the front of `text`.
fn take_number<'a, N: FromStr>(text: &'a str, prefix: &str) -> Option<(N, &'a str)> {
    let rest = text.strip_prefix(prefix)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..end].parse().ok()?, &rest[end..]))
}

/// Splits the optional controller off the front of `text`.
fn take_controller(text: &str) -> (u32, &str) {
    take_number(text, "c").unwrap_or((0, text))
}

impl FromStr for PfId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (controller, rest) = take_controller(text);
        match take_number(rest, "p") {
            Some((pf, "")) => Ok(Self { controller, pf }),
            _ => Err(ParseIdError::new(text, "PF", "p0")),
        }
    }
}

impl FromStr for FunctionId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (controller, rest) = take_controller(text);
        let parsed = take_number(rest, "pf").and_then(|(pf, rest)| match take_number(rest, "vf") {
            Some((vf, "")) => Some(Self { pf: PfId { controller, pf }, vf }),
            _ => None,
        });
        parsed.ok_or_else(|| ParseIdError::new(text, "VF", "pf0vf3"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_shown() {
        for text in ["pf0vf3", "c1pf2vf4095"] {
            assert_eq!(text.parse::<FunctionId>().unwrap().to_string(), text);
        }
        for text in ["p0", "c12p1"] {
            assert_eq!(text.parse::<PfId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn numbers_that_no_function_can_have_are_refused() {
        assert_eq!(FunctionId::from_numbers(0, 1, 65535), Ok(FunctionId::local(1, 65535)));
        let refused = |pf, vf| FunctionId::from_numbers(0, pf, vf).unwrap_err().to_string();
        assert_eq!(refused(65536, 0), "there is no PF 65536");
        assert_eq!(refused(0, 65537), "there is no VF 65537");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "pf0", "vf3", "pf0vf", "pf0vf3x", "cpf0vf3", "pf70000vf0", "pf0vf99999"] {
            assert!(text.parse::<FunctionId>().is_err(), "{text}");
        }
    }
}
