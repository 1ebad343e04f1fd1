//! Messages on the wire (OpenFlow 1.3.5, section 7).

use crate::{
    flow::{Action, Change, Cookies, CountedFlow, Flow, Meter},
    oxm,
};

/// A version of the protocol. All but ports is said in 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// OpenFlow 1.0.
    V10,
    /// OpenFlow 1.3.
    V13,
}

impl Version {
    /// As messages begin with it.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::V10 => 1,
            Self::V13 => 4,
        }
    }

    /// The kind of messages that ask for statistics.
    pub(crate) const fn statistics_request(self) -> u8 {
        match self {
            Self::V10 => 16,
            Self::V13 => MULTIPART_REQUEST,
        }
    }

    /// The kind of the replies.
    pub(crate) const fn statistics_reply(self) -> u8 {
        self.statistics_request() + 1
    }

    /// The kind of messages that set up a port.
    pub(crate) const fn port_mod(self) -> u8 {
        match self {
            Self::V10 => 15,
            Self::V13 => 16,
        }
    }

    /// The kind of messages that ask whether all before is done.
    pub(crate) const fn barrier_request(self) -> u8 {
        match self {
            Self::V10 => 18,
            Self::V13 => 20,
        }
    }

    /// The kind of the replies.
    pub(crate) const fn barrier_reply(self) -> u8 {
        self.barrier_request() + 1
    }
}

pub(crate) const HEADER_LEN: usize = 8;

pub(crate) const HELLO: u8 = 0;
pub(crate) const ERROR: u8 = 1;
pub(crate) const ECHO_REQUEST: u8 = 2;
pub(crate) const ECHO_REPLY: u8 = 3;
const EXPERIMENTER: u8 = 4;
const GET_CONFIG_REQUEST: u8 = 7;
pub(crate) const GET_CONFIG_REPLY: u8 = 8;
const SET_CONFIG: u8 = 9;
const FLOW_MOD: u8 = 14;
const MULTIPART_REQUEST: u8 = 18;
const METER_MOD: u8 = 29;

/// Any port, any group, no buffered packet.
const ANY: u32 = u32::MAX;
const ALL_TABLES: u8 = u8::MAX;

const ADD: u8 = 0;
const DELETE: u8 = 3;
const DELETE_STRICT: u8 = 4;

const FLOW_STATISTICS: u16 = 1;
const METER_STATISTICS: u16 = 9;
const METER_CONFIGURATION: u16 = 10;
const METER_FEATURES: u16 = 11;
/// More parts of the reply follow.
const MORE: u16 = 1;

// Bundles of OpenFlow 1.3 (ONF EXT-230).
const ONF: u32 = 0x4f4e_4600;
const BUNDLE_CONTROL: u32 = 2300;
const BUNDLE_ADD: u32 = 2301;
const OPEN: u16 = 0;
const COMMIT: u16 = 4;
const DISCARD: u16 = 6;
/// All or nothing, and in this order.
const ATOMIC_AND_ORDERED: u16 = 3;
/// One at a time on a connection.
const BUNDLE_NUMBER: u32 = 1;

/// Of the first fragment what is behind its head of IP is read (Open vSwitch's `OFPUTIL_FRAG_NX_MATCH`).
pub(crate) const READ_FIRST_FRAGMENT: u16 = 3;

const MATCH_OF_FIELDS: u16 = 1;
const GOTO_TABLE: u16 = 1;
const APPLY_ACTIONS: u16 = 4;
const METER: u16 = 6;
const OUTPUT: u16 = 0;
/// Open vSwitch's own messages and actions.
const NICIRA: u32 = 0x2320;
const FORGET_CONNECTIONS: u32 = 29;
const OWN_ACTION: u16 = 0xffff;
const TRACK: u16 = 35;
/// The connection is remembered.
const REMEMBERED: u16 = 1;
/// Forwarded as bridges do.
const NORMAL: u32 = 0xffff_fffa;

const ADD_METER: u16 = 0;
const MODIFY_METER: u16 = 1;
const DELETE_METER: u16 = 2;
/// In kbit/s, and with a burst.
const METER_FLAGS: u16 = 1 | 4;
const DROP_BAND: u16 = 1;
/// The error of a meter that is not there: its type and code.
pub(crate) const UNKNOWN_METER: (u16, u16) = (12, 3);

/// A message of OpenFlow 1.3 with that number.
pub(crate) fn message(kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
    message_of(Version::V13, kind, number, body)
}

/// A message of that version with that number.
pub(crate) fn message_of(version: Version, kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
    // What is longer does not come about: a bundle is several messages.
    let length = u16::try_from(HEADER_LEN + body.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    [&[version.number(), kind, high, low][..], &number.to_be_bytes(), body].concat()
}

/// What of a bundle is next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bundle<'a> {
    /// It has these changes.
    Open(&'a [Change]),
    /// They are made.
    Commit,
    /// It is forgotten.
    Discard,
}

/// The messages that say so, all with that number.
pub(crate) fn bundle(number: u32, next: Bundle<'_>) -> Vec<u8> {
    let changes = match next {
        Bundle::Open(changes) => changes,
        Bundle::Commit => return control(number, COMMIT),
        Bundle::Discard => return control(number, DISCARD),
    };
    let mut messages = control(number, OPEN);
    for change in changes {
        let change = message(FLOW_MOD, number, &flow_mod(change));
        let head = [ONF, BUNDLE_ADD, BUNDLE_NUMBER].map(u32::to_be_bytes).concat();
        let flags = [0, ATOMIC_AND_ORDERED].map(u16::to_be_bytes).concat();
        messages.extend(message(EXPERIMENTER, number, &[head, flags, change].concat()));
    }
    messages
}

fn control(number: u32, what: u16) -> Vec<u8> {
    let head = [ONF, BUNDLE_CONTROL, BUNDLE_NUMBER].map(u32::to_be_bytes).concat();
    let what = [what, ATOMIC_AND_ORDERED].map(u16::to_be_bytes).concat();
    message(EXPERIMENTER, number, &[head, what].concat())
}

fn flow_mod(change: &Change) -> Vec<u8> {
    let of_flow = |flow: &Flow, mask, command| {
        let cookies = Cookies { value: flow.cookie, mask };
        [head(cookies, flow.table, command, flow.priority), fields(&oxm::encode(&flow.matches))]
            .concat()
    };
    match change {
        Change::Add(flow) => [of_flow(flow, 0, ADD), instructions(flow.action)].concat(),
        Change::Remove(flow) => of_flow(flow, u64::MAX, DELETE_STRICT),
        Change::RemoveAll(cookies) => [head(*cookies, ALL_TABLES, DELETE, 0), fields(&[])].concat(),
    }
}

fn head(cookies: Cookies, table: u8, command: u8, priority: u16) -> Vec<u8> {
    let cookies = [cookies.value, cookies.mask].map(u64::to_be_bytes).concat();
    // Neither idle nor old ones go by themselves.
    let times_and_priority = [0, 0, priority].map(u16::to_be_bytes).concat();
    let any = [ANY; 3].map(u32::to_be_bytes).concat();
    [cookies, vec![table, command], times_and_priority, any, vec![0; 4]].concat()
}

/// Matches as a structure, whose length does not count what fills it up.
fn fields(encoded: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + encoded.len()).unwrap_or(u16::MAX);
    let head = [MATCH_OF_FIELDS, length].map(u16::to_be_bytes).concat();
    let mut fields = [&head, encoded].concat();
    fields.resize(fields.len().next_multiple_of(8), 0);
    fields
}

fn instructions(action: Action) -> Vec<u8> {
    match action {
        Action::Drop | Action::Other => Vec::new(),
        Action::Table(table) => {
            [&[GOTO_TABLE, 8].map(u16::to_be_bytes).concat()[..], &[table, 0, 0, 0]].concat()
        }
        Action::Metered { meter, table } => {
            let metered = [&[METER, 8].map(u16::to_be_bytes).concat()[..], &meter.to_be_bytes()];
            [metered.concat(), instructions(Action::Table(table))].concat()
        }
        Action::Normal => {
            let head = [APPLY_ACTIONS, 24, 0, 0, OUTPUT, 16].map(u16::to_be_bytes).concat();
            [&head, &NORMAL.to_be_bytes()[..], &[0; 8]].concat()
        }
        Action::Track { zone, table } => tracked(0, zone, table),
        Action::Remember { zone, table } => tracked(REMEMBERED, zone, table),
    }
}

/// Looks a connection up, and goes on in that table.
fn tracked(flags: u16, zone: u16, table: u8) -> Vec<u8> {
    let head = [APPLY_ACTIONS, 32, 0, 0, OWN_ACTION, 24].map(u16::to_be_bytes).concat();
    let what = [TRACK, flags].map(u16::to_be_bytes).concat();
    // The zone is a number, and none of the packet's fields has it.
    let zone = [&[0; 4][..], &zone.to_be_bytes()].concat();
    [head, NICIRA.to_be_bytes().into(), what, zone, vec![table, 0, 0, 0, 0, 0]].concat()
}

/// Has all connections of a zone forgotten.
pub(crate) fn forget_connections(number: u32, zone: u16) -> Vec<u8> {
    let head = [NICIRA, FORGET_CONNECTIONS].map(u32::to_be_bytes).concat();
    message(EXPERIMENTER, number, &[&head, &[0; 6][..], &zone.to_be_bytes()].concat())
}

/// Asks whether the switch is there.
pub(crate) fn echo_request(number: u32) -> Vec<u8> {
    message(ECHO_REQUEST, number, &[])
}

/// Asks how the switch deals with fragments, among other things.
pub(crate) fn config_request(number: u32) -> Vec<u8> {
    message(GET_CONFIG_REQUEST, number, &[])
}

/// How it does. `None`: the reply makes no sense.
pub(crate) fn fragments(body: &[u8]) -> Option<u16> {
    body.first_chunk::<2>().map(|flags| u16::from_be_bytes(*flags))
}

/// Has it deal with fragments like that. Of packets that are for a controller all is to be sent, and there is none.
pub(crate) fn set_fragments(number: u32, fragments: u16) -> Vec<u8> {
    message(SET_CONFIG, number, &[fragments, u16::MAX].map(u16::to_be_bytes).concat())
}

/// Asks for the flows with these cookies, of one table or of all.
pub(crate) fn flows_request(number: u32, table: Option<u8>, cookies: Cookies) -> Vec<u8> {
    let kind = [FLOW_STATISTICS, 0, 0, 0].map(u16::to_be_bytes).concat();
    let table = vec![table.unwrap_or(ALL_TABLES), 0, 0, 0];
    let any = [ANY, ANY, 0].map(u32::to_be_bytes).concat();
    let cookies = [cookies.value, cookies.mask].map(u64::to_be_bytes).concat();
    let body = [kind, table, any, cookies, fields(&[])].concat();
    message(MULTIPART_REQUEST, number, &body)
}

/// The flows of a part of the reply, and whether more parts follow. `None`: it makes no sense.
pub(crate) fn flows(body: &[u8]) -> Option<(Vec<CountedFlow>, bool)> {
    let (mut rest, has_more) = part(Version::V13, FLOW_STATISTICS, body)?;
    let mut flows = Vec::new();
    while !rest.is_empty() {
        let length = u16::from_be_bytes(*rest.first_chunk::<2>()?);
        // One without a length fails for its lack of a head.
        let (flow, others) = rest.split_at_checked(usize::from(length))?;
        flows.push(counted_flow(flow)?);
        rest = others;
    }
    Some((flows, has_more))
}

fn counted_flow(bytes: &[u8]) -> Option<CountedFlow> {
    let (head, rest) = bytes.split_first_chunk::<48>()?;
    let number = |at: usize| {
        let (number, _) = head.get(at..)?.split_first_chunk::<8>()?;
        Some(u64::from_be_bytes(*number))
    };
    let (told, _) = rest.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([told[2], told[3]]));
    let matches = oxm::decode(rest.get(4..length)?)?;
    let instructions = rest.get(length.next_multiple_of(8)..)?;
    let flow = Flow {
        table: head[2],
        priority: u16::from_be_bytes([head[12], head[13]]),
        cookie: number(24)?,
        matches,
        action: action(instructions),
    };
    Some(CountedFlow { flow, packets: number(32)?, bytes: number(40)? })
}

fn action(instructions: &[u8]) -> Action {
    let byte = |at: usize| instructions.get(at).copied().unwrap_or_default();
    let (zone, table) = (u16::from_be_bytes([byte(24), byte(25)]), byte(26));
    let meter = u32::from_be_bytes([byte(4), byte(5), byte(6), byte(7)]);
    let all = [
        Action::Drop,
        Action::Normal,
        Action::Table(byte(4)),
        Action::Metered { meter, table: byte(12) },
        Action::Track { zone, table },
        Action::Remember { zone, table },
    ];
    let known = all.into_iter().find(|action| self::instructions(*action) == instructions);
    known.unwrap_or(Action::Other)
}

/// What is to become of a meter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MeterChange {
    /// It is made. There is none of its number.
    Add(Meter),
    /// It is as it says from now on. There is one of its number.
    Modify(Meter),
    /// There is none of that number any more.
    Remove(u32),
}

pub(crate) fn meter_mod(number: u32, change: MeterChange) -> Vec<u8> {
    let (command, described) = match change {
        MeterChange::Add(meter) => (ADD_METER, described(meter)),
        MeterChange::Modify(meter) => (MODIFY_METER, described(meter)),
        MeterChange::Remove(meter) => (DELETE_METER, [&[0; 2][..], &meter.to_be_bytes()].concat()),
    };
    message(METER_MOD, number, &[&command.to_be_bytes()[..], &described].concat())
}

/// As messages say it behind their first field, which is another in each.
fn described(meter: Meter) -> Vec<u8> {
    let Meter { number, rate_kbits, burst_kbits } = meter;
    let band = [DROP_BAND, 16].map(u16::to_be_bytes).concat();
    let numbers = [rate_kbits, burst_kbits, 0].map(u32::to_be_bytes).concat();
    [&METER_FLAGS.to_be_bytes()[..], &number.to_be_bytes(), &band, &numbers].concat()
}

/// Asks what the meter of that number is like.
pub(crate) fn meter_request(number: u32, meter: u32) -> Vec<u8> {
    let kind = [METER_CONFIGURATION, 0, 0, 0].map(u16::to_be_bytes).concat();
    message(MULTIPART_REQUEST, number, &[&kind, &meter.to_be_bytes()[..], &[0; 4]].concat())
}

/// Whether the reply is of exactly this meter. `None`: it makes no sense.
pub(crate) fn is_meter(body: &[u8], meter: Meter) -> Option<bool> {
    let body = reply(METER_CONFIGURATION, body)?;
    Some(body.get(2..)? == described(meter))
}

/// Asks what all meters have counted.
pub(crate) fn meter_statistics_request(number: u32) -> Vec<u8> {
    let kind = [METER_STATISTICS, 0, 0, 0].map(u16::to_be_bytes).concat();
    message(MULTIPART_REQUEST, number, &[&kind, &ANY.to_be_bytes()[..], &[0; 4]].concat())
}

/// How many packets the first band of each meter has counted in a part of the reply, by the meter's number, and whether
/// more parts follow. `None`: it makes no sense.
pub(crate) fn meter_drops(body: &[u8]) -> Option<(Vec<(u32, u64)>, bool)> {
    let (mut rest, has_more) = part(Version::V13, METER_STATISTICS, body)?;
    let mut drops = Vec::new();
    while !rest.is_empty() {
        let (head, _) = rest.split_first_chunk::<40>()?;
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let (meter, others) = rest.split_at_checked(length)?;
        let bands = meter.get(head.len()..)?.first_chunk::<8>();
        let number = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        drops.push((number, bands.map_or(0, |packets| u64::from_be_bytes(*packets))));
        rest = others;
    }
    Some((drops, has_more))
}

/// Asks which meters there can be.
pub(crate) fn meter_features_request(number: u32) -> Vec<u8> {
    let kind = [METER_FEATURES, 0, 0, 0].map(u16::to_be_bytes).concat();
    message(MULTIPART_REQUEST, number, &kind)
}

/// The highest number that a meter can have; 0: there are none. `None`: the reply makes no sense.
pub(crate) fn highest_meter(body: &[u8]) -> Option<u32> {
    let (highest, _) = reply(METER_FEATURES, body)?.split_first_chunk::<4>()?;
    Some(u32::from_be_bytes(*highest))
}

/// What is behind the head of a reply of that kind.
fn reply(kind: u16, body: &[u8]) -> Option<&[u8]> {
    part(Version::V13, kind, body).map(|(rest, _)| rest)
}

/// The same of one that may have several parts, and whether more follow.
pub(crate) fn part(version: Version, kind: u16, body: &[u8]) -> Option<(&[u8], bool)> {
    let (head, rest) = body.split_first_chunk::<4>()?;
    let [of, flags] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_be_bytes);
    let filling = match version {
        Version::V10 => 0,
        Version::V13 => 4,
    };
    let rest = rest.get(filling..)?;
    (of == kind).then_some((rest, flags & MORE != 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn actions_are_read_as_they_are_written() {
        for it in [
            Action::Drop,
            Action::Normal,
            Action::Table(240),
            Action::Metered { meter: 1000, table: 240 },
            Action::Track { zone: 1000, table: 248 },
            Action::Remember { zone: 0xff00, table: 249 },
        ] {
            assert_eq!(action(&instructions(it)), it);
        }
        // Both of two instructions, and an output elsewhere.
        let both = [instructions(Action::Normal), instructions(Action::Table(1))].concat();
        assert_eq!(action(&both), Action::Other);
        let mut elsewhere = instructions(Action::Normal);
        elsewhere[15] = 1;
        assert_eq!(action(&elsewhere), Action::Other);
    }

    #[test]
    fn lengths_are_those_that_the_protocol_wants() {
        let flow = Flow {
            table: 0,
            priority: 1,
            cookie: 7,
            matches: [crate::Match::InPort(1)].into(),
            action: Action::Normal,
        };
        for change in [
            Change::Add(flow.clone()),
            Change::Remove(flow),
            Change::RemoveAll(Cookies::exactly(7)),
        ] {
            assert_eq!(flow_mod(&change).len() % 8, 0);
        }
        assert_eq!(flows_request(1, None, Cookies::exactly(7)).len(), 8 + 8 + 40);
        assert_eq!(control(1, OPEN).len(), 24);
        assert_eq!(forget_connections(1, 1000).len(), 24);
        assert_eq!(instructions(Action::Track { zone: 1, table: 2 }).len(), 32);
    }

    #[test]
    fn a_meter_is_known_again_and_no_other_is_like_it() {
        let meter = Meter { number: 1000, rate_kbits: 10_000, burst_kbits: 1_000 };
        let added = meter_mod(1, MeterChange::Add(meter));
        assert_eq!(added.len(), HEADER_LEN + 8 + 16);
        assert_eq!(meter_mod(1, MeterChange::Remove(1000)).len(), HEADER_LEN + 8);
        let body = [&[0, 10, 0, 0, 0, 0, 0, 0], &added[HEADER_LEN..]].concat();
        assert_eq!(is_meter(&body, meter), Some(true));
        assert_eq!(is_meter(&body, Meter { burst_kbits: 999, ..meter }), Some(false));
        let two_bands = [&body[..], &added[HEADER_LEN + 8..]].concat();
        assert_eq!(is_meter(&two_bands, meter), Some(false));
        assert_eq!(highest_meter(&[0, 11, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]), Some(1 << 18));
        for bytes in [&[][..], &[0, 10, 0, 0, 0, 0, 0], &[0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!((is_meter(bytes, meter), highest_meter(bytes)), (None, None));
        }
    }

    #[test]
    fn what_meters_have_dropped_is_read() {
        let of = |number: u32, bands: &[u64]| {
            let length = u16::try_from(40 + 16 * bands.len()).unwrap();
            let head = [&number.to_be_bytes()[..], &length.to_be_bytes(), &[0; 34]].concat();
            let bands = bands.iter().map(|packets| [packets.to_be_bytes(), [0; 8]].concat());
            [head, bands.collect::<Vec<_>>().concat()].concat()
        };
        let head = [0, 9, 0, 1, 0, 0, 0, 0];
        let body = [&head[..], &of(1000, &[7]), &of(1001, &[])].concat();
        assert_eq!(meter_drops(&body), Some((vec![(1000, 7), (1001, 0)], true)));
        for length in 9..body.len() - 40 {
            assert_eq!(meter_drops(&body[..length]), None, "{length}");
        }
        let senseless = [&head[..], &[0; 40]].concat();
        assert_eq!(meter_drops(&senseless), None, "one that is shorter than its head");
    }

    #[test]
    fn what_breaks_off_is_refused() {
        for bytes in [
            &[][..],
            &[0, 1, 0, 0, 0, 0, 0, 0, 0, 4],
            &[0, 2, 0, 0, 0, 0, 0, 0],
            &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(flows(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_in_is_taken_or_refused(bytes: Vec<u8>) {
            let _ = flows(&[&[0, 1, 0, 0, 0, 0, 0, 0][..], &bytes].concat());
        }
    }
}
