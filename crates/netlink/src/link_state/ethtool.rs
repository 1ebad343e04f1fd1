//! A driver's settings, read by the ethtool netlink family: every request whose answer is a setting, with all
//! attributes of the answer.

use std::collections::BTreeSet;

use netlink_packet_core::NlaBuffer;
use nix::errno::Errno;

use super::aspects::{Aspects, OFF, ON, unknown, value_of};
use crate::{
    datagram::attributes_in,
    error::{Error, RefusalCause},
    generic::{self, Family, GenericMessage, of_family},
    socket::KernelSocket,
};

/// A request, and the attributes of its answer that are no settings.
struct Question {
    command: u8,
    /// Name of the settings, for display.
    what: &'static str,
    /// Attributes that report a momentary state.
    left_out: &'static [u16],
}

/// A driver's answer.
enum Answer {
    /// The settings. Empty if the driver does not support the request.
    Settings(Vec<(String, String)>),
    NoSuchLink,
    /// The reason why the driver does not report them.
    Refused(String),
}

const fn about(what: &'static str, command: u8) -> Question {
    Question { command, what, left_out: &[] }
}

/// All requests for settings. Requests for identity, state or counters are left out: strings, modules, cables,
/// statistics.
const QUESTIONS: [Question; 17] = [
    about("port", 2),
    // Speed, duplex, lanes and modes result from negotiation and exist only with a carrier.
    Question { what: "link mode", command: 4, left_out: &[3, 4, 5, 6, 7, 8, 9, 10] },
    about("message level", 7),
    about("wake-on-lan", 9),
    about("feature", FEATURES),
    about("private flag", 13),
    about("rings", 15),
    about("channels", 17),
    about("coalescing", 19),
    about("pause frames", 21),
    // Activity and the peer's modes result from negotiation.
    Question { what: "energy-efficient ethernet", command: 23, left_out: &[3, 4] },
    // Attribute 4 is the active mode, a result of negotiation.
    Question { what: "forward error correction", command: 29, left_out: &[4] },
    about("module power", 34),
    about("spread of received frames", 38),
    about("collision avoidance", 39),
    Question { what: "preemption", command: 42, left_out: &[6, 7, 9] },
    about("time stamps", 47),
];

const FEATURES: u8 = 11;

/// Display names of attributes, by command.
const NAMED: [(u8, &[(u16, &str)]); 3] = [
    (15, &[(6, "for receiving"), (9, "for sending")]),
    (17, &[(6, "for receiving"), (7, "for sending"), (8, "others"), (9, "combined")]),
    (
        19,
        &[
            (2, "rx-usecs"),
            (3, "rx-frames"),
            (6, "tx-usecs"),
            (7, "tx-frames"),
            (11, "adaptive-rx"),
            (12, "adaptive-tx"),
        ],
    ),
];

/// The ethtool family in one namespace.
#[derive(Debug)]
pub(super) struct Ethtool {
    socket: KernelSocket,
    family: u16,
}

impl Ethtool {
    /// Opens a socket in the calling thread's namespace. `None`: the kernel has no ethtool family (before 5.6).
    pub(super) fn open() -> Result<Option<Self>, Error> {
        let failed = |error| Error::io("open a socket to drivers' settings", &error);
        let mut socket = generic::open_socket().map_err(failed)?;
        match Family::find(&mut socket, c"ethtool") {
            Ok(family) => Ok(Some(Self { socket, family: family.id })),
            Err(RefusalCause::Kernel { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(cause) => Err(cause.into_error("look for drivers' settings")),
        }
    }

    /// Reads all settings of a link's driver. Unsupported ones are left out. A refusal becomes the aspect's value. `None`: the link does not exist.
    pub(super) fn aspects(&mut self, index: u32) -> Option<Aspects> {
        let mut aspects = Aspects::new();
        for question in &QUESTIONS {
            let mut answer = self.ask(question, index);
            if matches!(answer, Answer::Refused(_)) {
                // A busy driver may answer the second time.
                answer = self.ask(question, index);
            }
            match answer {
                Answer::Settings(settings) => aspects.extend(settings),
                Answer::NoSuchLink => return None,
                Answer::Refused(why) => {
                    aspects.insert(question.aspect(""), unknown(&why));
                }
            }
        }
        Some(aspects)
    }

    fn ask(&mut self, question: &Question, index: u32) -> Answer {
        let message = self.asked(question.command, index);
        let answer = self.socket.get(&message, |object| {
            let (_command, attributes) = of_family(object)?;
            Ok(question.settings(attributes))
        });
        match answer {
            Ok(settings) => Answer::Settings(settings),
            Err(RefusalCause::Kernel { errno, .. }) => match errno {
                Errno::ENODEV => Answer::NoSuchLink,
                Errno::EOPNOTSUPP | Errno::EINVAL => Answer::Settings(Vec::new()),
                _ => Answer::Refused(errno.to_string()),
            },
            Err(RefusalCause::Answer(why)) => Answer::Refused(why),
        }
    }

    fn asked(&self, command: u8, index: u32) -> GenericMessage {
        const VERSION: u8 = 1;
        // Every request has a header attribute 1 that contains the link index as attribute 1.
        const HEADER: u16 = 1 | NESTED;
        let mut payload = vec![command, VERSION, 0, 0];
        payload.extend(12_u16.to_ne_bytes());
        payload.extend(HEADER.to_ne_bytes());
        payload.extend(8_u16.to_ne_bytes());
        payload.extend(1_u16.to_ne_bytes());
        payload.extend(index.to_ne_bytes());
        GenericMessage { family: self.family, payload }
    }
}

/// `NLA_F_NESTED`
const NESTED: u16 = 1 << 15;

impl Question {
    fn aspect(&self, name: &str) -> String {
        format!("{} {name}", self.what).trim_end().to_owned()
    }

    fn settings(&self, answer: &[u8]) -> Vec<(String, String)> {
        if self.command == FEATURES {
            return self.features(answer);
        }
        let is_setting =
            |attribute: &NlaBuffer<&[u8]>| attribute.kind() != 1 && !self.is_left_out(attribute);
        let settings = attributes_in(answer).filter(is_setting);
        settings
            .flat_map(|attribute| {
                let name = self.aspect(&self.name_of(attribute.kind()));
                match set_bits(attribute.value()) {
                    Some(bits) => {
                        let on =
                            bits.into_iter().map(|bit| (format!("{name} {bit}"), ON.to_owned()));
                        on.collect()
                    }
                    None => vec![(name, value_of(attribute.value()))],
                }
            })
            .collect()
    }

    fn is_left_out(&self, attribute: &NlaBuffer<&[u8]>) -> bool {
        self.left_out.contains(&attribute.kind())
    }

    fn name_of(&self, kind: u16) -> String {
        let names = NAMED.iter().find(|(command, _)| *command == self.command);
        let mut names = names.into_iter().flat_map(|(_, names)| names.iter());
        let known = names.find(|(number, _)| *number == kind);
        known.map_or_else(|| format!("({kind})"), |(_, name)| (*name).to_owned())
    }

    /// Features that are on, or that are wanted although the device cannot turn them on.
    fn features(&self, answer: &[u8]) -> Vec<(String, String)> {
        const WANTED: u16 = 3;
        const ACTIVE: u16 = 4;
        let bits = |kind: u16| -> BTreeSet<String> {
            let found = attributes_in(answer).find(|attribute| attribute.kind() == kind);
            found.and_then(|found| set_bits(found.value())).into_iter().flatten().collect()
        };
        let (wanted, active) = (bits(WANTED), bits(ACTIVE));
        let state = |name: &String| match (wanted.contains(name), active.contains(name)) {
            (true, true) => ON.to_owned(),
            (true, false) => format!("{OFF}, but wanted"),
            (false, _) => format!("{ON}, but not wanted"),
        };
        wanted.union(&active).map(|name| (self.aspect(name), state(name))).collect()
    }
}

/// The names of the bits that are set. `None`: the value is not a set of named bits. Attributes have no type, so the
/// length decides: nested attributes must fill the value.
fn set_bits(value: &[u8]) -> Option<Vec<String>> {
    const NO_MASK: u16 = 1;
    const BITS: u16 = 3;
    const NAME: u16 = 2;
    const VALUE: u16 = 3;
    let parts: Vec<_> = attributes_in(value).collect();
    let whole: usize =
        parts.iter().map(|part| usize::from(part.length()).next_multiple_of(4)).sum();
    if parts.is_empty() || whole != value.len().next_multiple_of(4) {
        return None;
    }
    let bits = parts.iter().find(|part| part.kind() == BITS)?;
    let are_all_set = parts.iter().any(|part| part.kind() == NO_MASK);
    let name = |bit: NlaBuffer<&[u8]>| {
        let inside: Vec<_> = attributes_in(bit.value()).collect();
        let is_set = are_all_set || inside.iter().any(|part| part.kind() == VALUE);
        let name = inside.iter().find(|part| part.kind() == NAME)?;
        let text = String::from_utf8_lossy(name.value()).trim_end_matches('\0').to_owned();
        is_set.then_some(text)
    };
    Some(attributes_in(bits.value()).filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn bit(name: &str, is_set: bool) -> Vec<u8> {
        let mut inside = attribute(2, format!("{name}\0").as_bytes());
        if is_set {
            inside.extend(attribute(3, &[]));
        }
        attribute(1 | NESTED, &inside)
    }

    #[test]
    fn ethtool_bits_are_named() {
        let bits = [bit("drv", true), bit("link", false)].concat();
        let answer = [
            attribute(1 | NESTED, &attribute(1, &7_u32.to_ne_bytes())),
            attribute(2 | NESTED, &attribute(3 | NESTED, &bits)),
            attribute(6, &512_u32.to_ne_bytes()),
        ];
        let found = |question: &Question| question.settings(&answer.concat());
        let expected = [("rings (2) drv", ON), ("rings for receiving", "512")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found(&about("rings", 15)), expected);
    }

    #[test]
    fn feature_has_actual_and_wanted_state() {
        let of = |names: &[&str]| {
            let bits = names.iter().flat_map(|name| bit(name, false)).collect::<Vec<_>>();
            [attribute(1, &[]), attribute(3 | NESTED, &bits)].concat()
        };
        let answer =
            [attribute(3 | NESTED, &of(&["a", "b"])), attribute(4 | NESTED, &of(&["a", "c"]))];
        let found: Vec<_> = about("feature", FEATURES).settings(&answer.concat());
        let found: Vec<_> = found.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let [asked, unasked, refused] = &found[..] else { panic!("{found:?}") };
        assert_eq!(asked, "feature a on");
        assert!(unasked.starts_with("feature b off, "), "{found:?}");
        assert!(refused.starts_with("feature c on, "), "{found:?}");
    }
}
