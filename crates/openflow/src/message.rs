//! Messages on the wire (OpenFlow 1.3.5, section 7).

use crate::{
    flow::{Action, Change, Cookies, CountedFlow, Flow, Meter},
    oxm,
};

/// An OpenFlow version. Only messages about ports use 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// OpenFlow 1.0.
    V10,
    /// OpenFlow 1.3.
    V13,
}

impl Version {
    /// The version number in message headers.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::V10 => 1,
            Self::V13 => 4,
        }
    }

    /// Message type of statistics requests.
    pub(crate) const fn statistics_request(self) -> u8 {
        match self {
            Self::V10 => 16,
            Self::V13 => MULTIPART_REQUEST,
        }
    }

    /// Message type of statistics replies.
    pub(crate) const fn statistics_reply(self) -> u8 {
        self.statistics_request() + 1
    }

    /// Message type of port modifications.
    pub(crate) const fn port_mod(self) -> u8 {
        match self {
            Self::V10 => 15,
            Self::V13 => 16,
        }
    }

    /// Message type of barrier requests.
    pub(crate) const fn barrier_request(self) -> u8 {
        match self {
            Self::V10 => 18,
            Self::V13 => 20,
        }
    }

    /// Message type of barrier replies.
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
/// Flag of a reply: more parts follow.
const MORE: u16 = 1;

// Bundles of OpenFlow 1.3 (ONF EXT-230).
const ONF: u32 = 0x4f4e_4600;
const BUNDLE_CONTROL: u32 = 2300;
const BUNDLE_ADD: u32 = 2301;
const OPEN: u16 = 0;
const COMMIT: u16 = 4;
const DISCARD: u16 = 6;
/// Flags of a bundle: atomic and ordered.
const ATOMIC_AND_ORDERED: u16 = 3;
/// Bundle number. A connection has one bundle at a time.
const BUNDLE_NUMBER: u32 = 1;

/// `OFPUTIL_FRAG_NX_MATCH` of Open vSwitch: flows match the transport fields of the first fragment.
pub(crate) const READ_FIRST_FRAGMENT: u16 = 3;

const MATCH_OF_FIELDS: u16 = 1;
const GOTO_TABLE: u16 = 1;
const APPLY_ACTIONS: u16 = 4;
const METER: u16 = 6;
const OUTPUT: u16 = 0;
/// Experimenter ID of Open vSwitch's own messages and actions.
const NICIRA: u32 = 0x2320;
const FORGET_CONNECTIONS: u32 = 29;
const OWN_ACTION: u16 = 0xffff;
const TRACK: u16 = 35;
/// Flag of the `ct` action: commit the connection.
const REMEMBERED: u16 = 1;
/// Output port `NORMAL`: forward like a learning switch.
const NORMAL: u32 = 0xffff_fffa;

const ADD_METER: u16 = 0;
const MODIFY_METER: u16 = 1;
const DELETE_METER: u16 = 2;
/// Flags: rate in kbit/s, with a burst.
const METER_FLAGS: u16 = 1 | 4;
const DROP_BAND: u16 = 1;
/// Error type and code for a meter that does not exist.
pub(crate) const UNKNOWN_METER: (u16, u16) = (12, 3);

/// Encodes a message of OpenFlow 1.3. `number` is the transaction ID.
pub(crate) fn message(kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
    message_of(Version::V13, kind, number, body)
}

/// Encodes a message. `number` is the transaction ID.
pub(crate) fn message_of(version: Version, kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
    // Messages here are far below 64 KiB, because a bundle consists of several messages.
    let length = u16::try_from(HEADER_LEN + body.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    [&[version.number(), kind, high, low][..], &number.to_be_bytes(), body].concat()
}

/// A step of a bundle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bundle<'a> {
    /// Opens the bundle and adds these changes.
    Open(&'a [Change]),
    /// Commits the changes.
    Commit,
    /// Discards the bundle.
    Discard,
}

/// Encodes a step of a bundle. All its messages have the same transaction ID.
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
    // No idle and no hard timeout: flows stay until they are removed.
    let times_and_priority = [0, 0, priority].map(u16::to_be_bytes).concat();
    let any = [ANY; 3].map(u32::to_be_bytes).concat();
    [cookies, vec![table, command], times_and_priority, any, vec![0; 4]].concat()
}

/// Encodes matches as `ofp_match`, whose length excludes the padding.
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

/// Encodes the `ct` action that looks up a connection and continues in a table.
fn tracked(flags: u16, zone: u16, table: u8) -> Vec<u8> {
    let head = [APPLY_ACTIONS, 32, 0, 0, OWN_ACTION, 24].map(u16::to_be_bytes).concat();
    let what = [TRACK, flags].map(u16::to_be_bytes).concat();
    // The zone is an immediate value: its source field is 0.
    let zone = [&[0; 4][..], &zone.to_be_bytes()].concat();
    [head, NICIRA.to_be_bytes().into(), what, zone, vec![table, 0, 0, 0, 0, 0]].concat()
}

/// Deletes all connections of a zone.
pub(crate) fn forget_connections(number: u32, zone: u16) -> Vec<u8> {
    let head = [NICIRA, FORGET_CONNECTIONS].map(u32::to_be_bytes).concat();
    message(EXPERIMENTER, number, &[&head, &[0; 6][..], &zone.to_be_bytes()].concat())
}

pub(crate) fn echo_request(number: u32) -> Vec<u8> {
    message(ECHO_REQUEST, number, &[])
}

/// Requests the switch configuration, which includes the handling of fragments.
pub(crate) fn config_request(number: u32) -> Vec<u8> {
    message(GET_CONFIG_REQUEST, number, &[])
}

/// The handling of fragments in a reply. `None`: the reply is malformed.
pub(crate) fn fragments(body: &[u8]) -> Option<u16> {
    body.first_chunk::<2>().map(|flags| u16::from_be_bytes(*flags))
}

/// Sets the handling of fragments. The miss length is the maximum; it only matters with a controller.
pub(crate) fn set_fragments(number: u32, fragments: u16) -> Vec<u8> {
    message(SET_CONFIG, number, &[fragments, u16::MAX].map(u16::to_be_bytes).concat())
}

/// Requests the flows with these cookies, of one table or of all.
pub(crate) fn flows_request(number: u32, table: Option<u8>, cookies: Cookies) -> Vec<u8> {
    let table = vec![table.unwrap_or(ALL_TABLES), 0, 0, 0];
    let any = [ANY, ANY, 0].map(u32::to_be_bytes).concat();
    let cookies = [cookies.value, cookies.mask].map(u64::to_be_bytes).concat();
    multipart(FLOW_STATISTICS, number, &[table, any, cookies, fields(&[])].concat())
}

/// The flows in a part of the reply, and whether more parts follow. `None`: the reply is malformed.
pub(crate) fn flows(body: &[u8]) -> Option<(Vec<CountedFlow>, bool)> {
    let (mut rest, has_more) = part(Version::V13, FLOW_STATISTICS, body)?;
    let mut flows = Vec::new();
    while !rest.is_empty() {
        let length = u16::from_be_bytes(*rest.first_chunk::<2>()?);
        // A flow of length 0 fails below, because its header is missing.
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
    let (field, _) = rest.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([field[2], field[3]]));
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

/// A change of a meter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MeterChange {
    /// Adds a meter whose number is unused.
    Add(Meter),
    /// Modifies the meter of this number, which must exist.
    Modify(Meter),
    /// Removes the meter of this number.
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

/// Encodes a meter without the first field, which differs between messages.
fn described(meter: Meter) -> Vec<u8> {
    let Meter { number, rate_kbits, burst_kbits } = meter;
    let band = [DROP_BAND, 16].map(u16::to_be_bytes).concat();
    let numbers = [rate_kbits, burst_kbits, 0].map(u32::to_be_bytes).concat();
    [&METER_FLAGS.to_be_bytes()[..], &number.to_be_bytes(), &band, &numbers].concat()
}

/// Requests the configuration of one meter.
pub(crate) fn meter_request(number: u32, meter: u32) -> Vec<u8> {
    multipart(METER_CONFIGURATION, number, &[meter, 0].map(u32::to_be_bytes).concat())
}

/// Whether the reply describes exactly this meter. `None`: the reply is malformed.
pub(crate) fn is_meter(body: &[u8], meter: Meter) -> Option<bool> {
    let body = reply(METER_CONFIGURATION, body)?;
    Some(body.get(2..)? == described(meter))
}

/// Requests the counters of all meters.
pub(crate) fn meter_statistics_request(number: u32) -> Vec<u8> {
    multipart(METER_STATISTICS, number, &[ANY, 0].map(u32::to_be_bytes).concat())
}

/// The packets that each meter has dropped, by meter number, from a part of the reply, and whether more parts follow.
/// `None`: the reply is malformed.
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

/// Requests the limits of meters.
pub(crate) fn meter_features_request(number: u32) -> Vec<u8> {
    multipart(METER_FEATURES, number, &[])
}

/// The highest possible meter number. 0: the datapath has no meters. `None`: the reply is malformed.
pub(crate) fn highest_meter(body: &[u8]) -> Option<u32> {
    let (highest, _) = reply(METER_FEATURES, body)?.split_first_chunk::<4>()?;
    Some(u32::from_be_bytes(*highest))
}

fn multipart(kind: u16, number: u32, body: &[u8]) -> Vec<u8> {
    let kind = [kind, 0, 0, 0].map(u16::to_be_bytes).concat();
    message(MULTIPART_REQUEST, number, &[&kind, body].concat())
}

/// The body of a reply of this statistics type.
fn reply(kind: u16, body: &[u8]) -> Option<&[u8]> {
    part(Version::V13, kind, body).map(|(rest, _)| rest)
}

/// The body of one part of a reply, and whether more parts follow.
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
    fn actions_survive_encoding() {
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
        // Two instructions together, and an output to another port.
        let both = [instructions(Action::Normal), instructions(Action::Table(1))].concat();
        assert_eq!(action(&both), Action::Other);
        let mut elsewhere = instructions(Action::Normal);
        elsewhere[15] = 1;
        assert_eq!(action(&elsewhere), Action::Other);
    }

    #[test]
    fn openflow_message_lengths_follow_protocol() {
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
    fn meter_equals_only_itself() {
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
    fn meter_drops_are_read() {
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
    fn truncated_openflow_replies_are_refused() {
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
        fn arbitrary_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = flows(&[&[0, 1, 0, 0, 0, 0, 0, 0][..], &bytes].concat());
        }
    }
}
