//! A connection to a bridge.

use std::{
    collections::{BTreeMap, HashMap},
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use patience::Patience;

use crate::{
    Error,
    flow::{Change, Cookies, CountedFlow, Meter},
    message::{
        Bundle, ECHO_REPLY, ECHO_REQUEST, ERROR, GET_CONFIG_REPLY, HEADER_LEN, HELLO, MeterChange,
        READ_FIRST_FRAGMENT, UNKNOWN_METER, Version, bundle, config_request, echo_request, flows,
        flows_request, forget_connections, fragments, highest_meter, is_meter, message_of,
        meter_drops, meter_features_request, meter_mod, meter_request, meter_statistics_request,
        set_fragments,
    },
    port::{SwitchPort, open_port, ports, ports_request},
};

/// The number of the bridge's own port.
pub const LOCAL: u32 = 0xffff_fffe;

/// A connection to a bridge. After any error but [`Error::Refused`] it is of no use.
#[derive(Debug)]
pub struct Switch {
    socket: PathBuf,
    stream: UnixStream,
    deadline: Duration,
    version: Version,
    latest: u32,
    is_broken: bool,
}

/// A connection to a bridge that is about its ports. After any error but [`Error::Refused`] it is of no use.
#[derive(Debug)]
pub struct PortSwitch(Switch);

/// What the switch said.
struct Said {
    version: u8,
    kind: u8,
    number: u32,
    body: Vec<u8>,
}

impl Switch {
    /// Connects to the management socket of a bridge. Every answer is waited for as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::Version`]; or as any call.
    pub fn connect(socket: &Path, deadline: Duration) -> Result<Self, Error> {
        Self::connect_in(Version::V13, socket, deadline)
    }

    fn connect_in(version: Version, socket: &Path, deadline: Duration) -> Result<Self, Error> {
        let stream = patience::connect(socket, deadline);
        let socket = socket.to_owned();
        let stream = stream.map_err(|source| match source.kind() {
            ErrorKind::TimedOut => timed_out(&socket, deadline),
            _ => Error::Connect { socket: socket.clone(), source },
        })?;
        let mut switch = Self { socket, stream, deadline, version, latest: 0, is_broken: false };
        switch.guarded(Self::greet)?;
        Ok(switch)
    }

    /// Does all of these or none, in this order. They are in effect when it returns, but for frames like those that
    /// the datapath has just decided on: these it looks at anew within some hundred milliseconds.
    ///
    /// # Errors
    /// [`Error::Refused`], and nothing was done; others, and it may have been.
    pub fn change(&mut self, changes: &[Change]) -> Result<(), Error> {
        self.guarded(|switch| {
            // The switch would carry out the rest of a bundle of which it has refused a part.
            if let Err(refused) = switch.say(|number| bundle(number, Bundle::Open(changes))) {
                if matches!(refused, Error::Refused { .. }) {
                    switch.say(|number| bundle(number, Bundle::Discard))?;
                }
                return Err(refused);
            }
            switch.say(|number| bundle(number, Bundle::Commit))
        })
    }

    /// Forgets all connections of a zone that [`crate::Action::Remember`] has had remembered.
    ///
    /// # Errors
    /// As any call.
    pub fn forget_connections(&mut self, zone: u16) -> Result<(), Error> {
        self.guarded(|switch| switch.say(|number| forget_connections(number, zone)))
    }

    /// The flows with these cookies, of all tables.
    ///
    /// # Errors
    /// As any call.
    pub fn flows(&mut self, cookies: Cookies) -> Result<Vec<CountedFlow>, Error> {
        Ok(self.listed(&[(None, cookies)])?.pop().unwrap_or_default())
    }

    /// The flows with these cookies, of these tables.
    ///
    /// # Errors
    /// As any call.
    pub fn flows_of_tables(
        &mut self,
        tables: &[u8],
        cookies: Cookies,
    ) -> Result<Vec<CountedFlow>, Error> {
        let asked: Vec<_> = tables.iter().map(|table| (Some(*table), cookies)).collect();
        Ok(self.listed(&asked)?.into_iter().flatten().collect())
    }

    fn listed(&mut self, asked: &[(Option<u8>, Cookies)]) -> Result<Vec<Vec<CountedFlow>>, Error> {
        self.guarded(|switch| {
            let requests = asked
                .iter()
                .map(|(table, cookies)| move |number| flows_request(number, *table, *cookies));
            let mut all: Vec<Vec<_>> = asked.iter().map(|_| Vec::new()).collect();
            switch.ask_all(requests, |place, body| {
                let (found, has_more) = flows(body)?;
                all.get_mut(place)?.extend(found);
                Some(has_more)
            })?;
            Ok(all)
        })
    }

    /// Whether flows can tell of the first fragment of a packet to which port it is, and the like. Otherwise all fragments
    /// are to port 0 for them.
    ///
    /// # Errors
    /// As any call.
    pub fn reads_first_fragments(&mut self) -> Result<bool, Error> {
        self.guarded(|switch| {
            let mut found = None;
            switch.ask(config_request, |body| {
                found = Some(fragments(body)?);
                Some(false)
            })?;
            Ok(found == Some(READ_FIRST_FRAGMENT))
        })
    }

    /// Has flows tell that, all of the bridge's, for as long as the daemon runs.
    ///
    /// # Errors
    /// As any call.
    pub fn read_first_fragments(&mut self) -> Result<(), Error> {
        self.guarded(|switch| switch.say(|number| set_fragments(number, READ_FIRST_FRAGMENT)))
    }

    /// How many packets each meter has dropped, by its number.
    ///
    /// # Errors
    /// As any call.
    pub fn meter_drops(&mut self) -> Result<BTreeMap<u32, u64>, Error> {
        self.guarded(|switch| {
            let mut all = BTreeMap::new();
            switch.ask(meter_statistics_request, |body| {
                let (drops, has_more) = meter_drops(body)?;
                all.extend(drops);
                Some(has_more)
            })?;
            Ok(all)
        })
    }

    /// The highest number that a meter can have. 0: the datapath has no meters.
    ///
    /// # Errors
    /// As any call.
    pub fn highest_meter(&mut self) -> Result<u32, Error> {
        self.guarded(|switch| {
            let mut highest = 0;
            switch.ask(meter_features_request, |body| {
                highest = highest_meter(body)?;
                Some(false)
            })?;
            Ok(highest)
        })
    }

    /// Whether there is exactly this meter.
    ///
    /// # Errors
    /// As any call.
    pub fn has_meter(&mut self, meter: Meter) -> Result<bool, Error> {
        self.guarded(|switch| Ok(switch.find_meter(meter)? == Some(true)))
    }

    /// Sets a meter, in place of any other of its number. Flows that name it go on doing so.
    ///
    /// # Errors
    /// [`Error::Refused`], and nothing was done; others, and it may have been.
    pub fn set_meter(&mut self, meter: Meter) -> Result<(), Error> {
        self.guarded(|switch| {
            let change = match switch.find_meter(meter)? {
                Some(true) => return Ok(()),
                Some(false) => MeterChange::Modify(meter),
                None => MeterChange::Add(meter),
            };
            switch.say(|number| meter_mod(number, change))
        })
    }

    /// Takes a meter away, if there is one, and all flows that name it.
    ///
    /// # Errors
    /// As [`Self::set_meter`].
    pub fn remove_meter(&mut self, number: u32) -> Result<(), Error> {
        let change = MeterChange::Remove(number);
        self.guarded(|switch| switch.say(|number| meter_mod(number, change)))
    }

    /// Whether the meter of that number is exactly this one. `None`: there is none of that number.
    fn find_meter(&mut self, meter: Meter) -> Result<Option<bool>, Error> {
        let mut found = None;
        let asked = self.ask(
            |number| meter_request(number, meter.number),
            |body| {
                found = Some(is_meter(body, meter)?);
                Some(false)
            },
        );
        match asked {
            Err(Error::Refused { kind, code }) if (kind, code) == UNKNOWN_METER => Ok(None),
            asked => asked.map(|()| found),
        }
    }

    /// Asks, and has each part of the reply taken, until one says that no more follow. One that makes no sense says
    /// nothing.
    fn ask(
        &mut self,
        request: impl FnOnce(u32) -> Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Option<bool>,
    ) -> Result<(), Error> {
        self.ask_all([request], |_, body| take(body))
    }

    /// The same of several requests at once, each with its place among them.
    fn ask_all<R: FnOnce(u32) -> Vec<u8>>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        mut take: impl FnMut(usize, &[u8]) -> Option<bool>,
    ) -> Result<(), Error> {
        let (mut bytes, mut places) = (Vec::new(), HashMap::new());
        for (place, request) in requests.into_iter().enumerate() {
            let number = self.next_number();
            bytes.extend(request(number));
            places.insert(number, place);
        }
        self.write(&bytes)?;
        let mut patience = Patience::new(self.deadline);
        while !places.is_empty() {
            let said = self.answer(&mut patience)?;
            let Some(place) = places.get(&said.number) else { continue };
            match said.kind {
                ERROR => return Err(refusal(&said.body)?),
                kind if self.is_reply(kind) => {
                    let garbage = Error::Garbage { why: "a reply that makes no sense" };
                    if !take(*place, &said.body).ok_or(garbage)? {
                        places.remove(&said.number);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_reply(&self, kind: u8) -> bool {
        kind == self.version.statistics_reply() || matches!(kind, GET_CONFIG_REPLY | ECHO_REPLY)
    }

    /// Blocks for as long as `pause`, and then asks whether the switch is there. Returns at once when the connection ends.
    ///
    /// # Errors
    /// As any call.
    pub fn watch(&mut self, pause: Duration) -> Result<(), Error> {
        self.guarded(|switch| {
            let mut patience = Patience::new(pause);
            let ended = loop {
                // Nothing is asked for, so that nothing that is said matters.
                if let Err(error) = switch.next(&mut patience) {
                    break error;
                }
            };
            match ended {
                Error::TimedOut { .. } => switch.ask(echo_request, |_| Some(false)),
                ended => Err(ended),
            }
        })
    }

    /// Says that, and waits until the switch is done with it.
    fn say(&mut self, messages: impl FnOnce(u32) -> Vec<u8>) -> Result<(), Error> {
        let (number, barrier) = (self.next_number(), self.next_number());
        let mut all = messages(number);
        all.extend(message_of(self.version, self.version.barrier_request(), barrier, &[]));
        self.write(&all)?;
        let mut refused = Ok(());
        let mut patience = Patience::new(self.deadline);
        loop {
            let said = self.answer(&mut patience)?;
            match said.kind {
                kind if kind == self.version.barrier_reply() && said.number == barrier => {
                    return refused;
                }
                // The first is why the others are.
                ERROR if said.number == number => refused = refused.and(Err(refusal(&said.body)?)),
                _ => {}
            }
        }
    }

    /// Does `work`, unless a call before has broken the connection.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.is_broken {
            return Err(self.closed());
        }
        let outcome = work(self);
        self.is_broken = !matches!(outcome, Ok(_) | Err(Error::Refused { .. }));
        outcome
    }

    fn greet(&mut self) -> Result<(), Error> {
        let number = self.next_number();
        self.write(&message_of(self.version, HELLO, number, &[]))?;
        let said = self.next(&mut Patience::new(self.deadline))?;
        match (said.kind, said.version) {
            (HELLO, version) if version >= self.version.number() => Ok(()),
            (HELLO | ERROR, _) => Err(Error::Version),
            _ => Err(Error::Garbage { why: "it does not begin with a greeting" }),
        }
    }

    fn next_number(&mut self) -> u32 {
        self.latest = self.latest.wrapping_add(1);
        self.latest
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|error| self.failed(error.kind()))
    }

    /// What the switch says next in the version that was agreed on.
    fn answer(&mut self, patience: &mut Patience) -> Result<Said, Error> {
        let said = self.next(patience)?;
        // The greeting tells whether it speaks ours; that it took another, only what it says then.
        if said.version == self.version.number() { Ok(said) } else { Err(Error::Version) }
    }

    /// What the switch says next, but for the question whether somebody is there, which is answered.
    fn next(&mut self, patience: &mut Patience) -> Result<Said, Error> {
        loop {
            let said = self.read(patience)?;
            if said.kind != ECHO_REQUEST {
                return Ok(said);
            }
            self.write(&message_of(self.version, ECHO_REPLY, said.number, &said.body))?;
        }
    }

    fn read(&mut self, patience: &mut Patience) -> Result<Said, Error> {
        let mut head = [0; HEADER_LEN];
        self.fill(&mut head, patience)?;
        let [version, kind, high, low, a, b, c, d] = head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let rest = length.checked_sub(HEADER_LEN);
        let rest = rest.ok_or(Error::Garbage { why: "a message is shorter than its head" })?;
        let mut body = vec![0; rest];
        self.fill(&mut body, patience)?;
        Ok(Said { version, kind, number: u32::from_be_bytes([a, b, c, d]), body })
    }

    fn fill(&mut self, mut buffer: &mut [u8], patience: &mut Patience) -> Result<(), Error> {
        while !buffer.is_empty() {
            let read = patience.wait(|most| {
                self.stream.set_read_timeout(Some(most))?;
                self.stream.read(buffer)
            });
            match read.ok_or_else(|| self.failed(ErrorKind::TimedOut))? {
                Ok(0) => return Err(self.closed()),
                Ok(read) => buffer = &mut buffer[read..],
                // Nothing came in this stretch of the waiting.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error.kind())),
            }
        }
        Ok(())
    }

    fn failed(&self, kind: ErrorKind) -> Error {
        match kind {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => timed_out(&self.socket, self.deadline),
            _ => self.closed(),
        }
    }

    fn closed(&self) -> Error {
        Error::Closed { socket: self.socket.clone() }
    }
}

impl PortSwitch {
    /// Connects as [`Switch::connect`], and reads all ports: in OpenFlow 1.0, which alone tells all that may keep frames
    /// from passing them, or in 1.3 if the bridge's `protocols` do not have that.
    ///
    /// # Errors
    /// As [`Switch::connect`], or as any call.
    pub fn connect(socket: &Path, deadline: Duration) -> Result<(Self, Vec<SwitchPort>), Error> {
        let connect = |version| {
            let mut switch = Self(Switch::connect_in(version, socket, deadline)?);
            let ports = switch.ports()?;
            Ok((switch, ports))
        };
        match connect(Version::V10) {
            // A bridge that does not speak a version says so, and ends the connection.
            Err(Error::Version | Error::Closed { .. }) => connect(Version::V13),
            connected => connected,
        }
    }

    fn ports(&mut self) -> Result<Vec<SwitchPort>, Error> {
        self.0.guarded(|switch| {
            let (version, mut all) = (switch.version, Vec::new());
            switch.ask(
                |number| ports_request(version, number),
                |body| {
                    let (found, has_more) = ports(version, body)?;
                    all.extend(found);
                    Some(has_more)
                },
            )?;
            Ok(all)
        })
    }

    /// Has frames pass a port again that something keeps them from.
    ///
    /// # Errors
    /// [`Error::Refused`], and nothing was done; others, and it may have been.
    pub fn open(&mut self, port: &SwitchPort) -> Result<(), Error> {
        let version = self.0.version;
        self.0.guarded(|switch| switch.say(|number| open_port(version, number, port)))
    }
}

fn timed_out(socket: &Path, deadline: Duration) -> Error {
    Error::TimedOut { socket: socket.to_owned(), milliseconds: deadline.as_millis() }
}

/// What an error of the switch's tells.
fn refusal(body: &[u8]) -> Result<Error, Error> {
    let (told, _) = body
        .split_first_chunk::<4>()
        .ok_or(Error::Garbage { why: "an error that tells nothing" })?;
    let [kind, code] = [[told[0], told[1]], [told[2], told[3]]].map(u16::from_be_bytes);
    Ok(Error::Refused { kind, code })
}
