//! Blocking connections to a bridge.
//!
//! An error other than a refusal may leave unread or half-written messages on the stream, so it marks the connection as
//! broken. Later calls on it fail.

use std::{
    collections::{BTreeMap, HashMap},
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use suspend_timeout::SuspendAwareTimeout;

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

const MALFORMED: Error = Error::Garbage { why: "a malformed reply" };

/// Port number of the bridge's own port.
pub const LOCAL: u32 = 0xffff_fffe;

/// A connection to a bridge. After any error but [`Error::Refused`] it is unusable.
#[derive(Debug)]
pub struct Switch {
    socket: PathBuf,
    stream: UnixStream,
    deadline: Duration,
    version: Version,
    latest: u32,
    is_broken: bool,
}

/// A connection to a bridge for its ports. After any error but [`Error::Refused`] it is unusable.
#[derive(Debug)]
pub struct PortSwitch(Switch);

/// A message from the switch. `number` is its transaction ID.
struct Reply {
    version: u8,
    kind: u8,
    number: u32,
    body: Vec<u8>,
}

impl Switch {
    /// Connects to the management socket of a bridge. `deadline` is the timeout of each call.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Version`], or the errors of any call.
    pub fn connect(socket: &Path, deadline: Duration) -> Result<Self, Error> {
        Self::connect_in(Version::V13, socket, deadline)
    }

    fn connect_in(version: Version, socket: &Path, deadline: Duration) -> Result<Self, Error> {
        let stream = suspend_timeout::connect(socket, deadline);
        let socket = socket.to_owned();
        let stream = stream.map_err(|source| match source.kind() {
            ErrorKind::TimedOut => timed_out(&socket, deadline),
            _ => Error::Connect { socket: socket.clone(), source },
        })?;
        let mut switch = Self { socket, stream, deadline, version, latest: 0, is_broken: false };
        switch.guarded(Self::greet)?;
        Ok(switch)
    }

    /// Applies all changes in this order, or none. They are in effect on return. Only frames like those that the
    /// datapath has just forwarded may follow the old flows for some hundred milliseconds, until it revalidates.
    ///
    /// # Errors
    /// After [`Error::Refused`] nothing has changed. After other errors the changes may have been made.
    pub fn change(&mut self, changes: &[Change]) -> Result<(), Error> {
        self.guarded(|switch| {
            // The switch would commit the rest of a bundle after it refused one message, so discard the bundle.
            if let Err(refused) = switch.say(|number| bundle(number, Bundle::Open(changes))) {
                if matches!(refused, Error::Refused { .. }) {
                    switch.say(|number| bundle(number, Bundle::Discard))?;
                }
                return Err(refused);
            }
            switch.say(|number| bundle(number, Bundle::Commit))
        })
    }

    /// Deletes all connections of a zone that [`crate::Action::Remember`] committed.
    ///
    /// # Errors
    /// Those of any call.
    pub fn forget_connections(&mut self, zone: u16) -> Result<(), Error> {
        self.guarded(|switch| switch.say(|number| forget_connections(number, zone)))
    }

    /// Reads the flows with these cookies, of all tables.
    ///
    /// # Errors
    /// Those of any call.
    pub fn flows(&mut self, cookies: Cookies) -> Result<Vec<CountedFlow>, Error> {
        Ok(self.listed(&[(None, cookies)])?.pop().unwrap_or_default())
    }

    /// Reads the flows with these cookies, of these tables.
    ///
    /// # Errors
    /// Those of any call.
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

    /// Whether flows match the ports of a packet's first fragment. Otherwise they see port 0 for all fragments.
    ///
    /// # Errors
    /// Those of any call.
    pub fn reads_first_fragments(&mut self) -> Result<bool, Error> {
        let found = self.guarded(|switch| switch.ask_once(config_request, fragments))?;
        Ok(found == READ_FIRST_FRAGMENT)
    }

    /// Makes all flows of the bridge match the ports of first fragments, until the daemon restarts.
    ///
    /// # Errors
    /// Those of any call.
    pub fn read_first_fragments(&mut self) -> Result<(), Error> {
        self.guarded(|switch| switch.say(|number| set_fragments(number, READ_FIRST_FRAGMENT)))
    }

    /// Reads how many packets each meter has dropped, by meter number.
    ///
    /// # Errors
    /// Those of any call.
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

    /// Reads the highest possible meter number. 0: the datapath has no meters.
    ///
    /// # Errors
    /// Those of any call.
    pub fn highest_meter(&mut self) -> Result<u32, Error> {
        self.guarded(|switch| switch.ask_once(meter_features_request, highest_meter))
    }

    /// Whether exactly this meter exists.
    ///
    /// # Errors
    /// Those of any call.
    pub fn has_meter(&mut self, meter: Meter) -> Result<bool, Error> {
        self.guarded(|switch| Ok(switch.find_meter(meter)? == Some(true)))
    }

    /// Sets a meter, replacing one of the same number. Flows keep referring to it.
    ///
    /// # Errors
    /// After [`Error::Refused`] nothing has changed. After other errors the meter may have been set.
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

    /// Removes a meter and all flows that refer to it. It need not exist.
    ///
    /// # Errors
    /// Those of [`Self::set_meter`].
    pub fn remove_meter(&mut self, number: u32) -> Result<(), Error> {
        let change = MeterChange::Remove(number);
        self.guarded(|switch| switch.say(|number| meter_mod(number, change)))
    }

    /// Whether the meter of this number equals `meter`. `None`: it does not exist.
    fn find_meter(&mut self, meter: Meter) -> Result<Option<bool>, Error> {
        let request = |number| meter_request(number, meter.number);
        match self.ask_once(request, |body| is_meter(body, meter)) {
            Err(Error::Refused { kind, code }) if (kind, code) == UNKNOWN_METER => Ok(None),
            found => found.map(Some),
        }
    }

    /// Sends a request and reads the only part of the reply. `read` returns `None` for a malformed one.
    fn ask_once<T>(
        &mut self,
        request: impl FnOnce(u32) -> Vec<u8>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, Error> {
        let mut found = None;
        self.ask(request, |body| {
            found = Some(read(body)?);
            Some(false)
        })?;
        found.ok_or(MALFORMED)
    }

    /// Sends a request and passes each part of the reply to `take`, until that returns `Some(false)`: no more parts
    /// follow. It returns `None` for a malformed part.
    fn ask(
        &mut self,
        request: impl FnOnce(u32) -> Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Option<bool>,
    ) -> Result<(), Error> {
        self.ask_all([request], |_, body| take(body))
    }

    /// Sends several requests at once. `take` gets the position of the request and a part of its reply.
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
        let mut timeout = SuspendAwareTimeout::new(self.deadline);
        while !places.is_empty() {
            let reply = self.answer(&mut timeout)?;
            let Some(place) = places.get(&reply.number) else { continue };
            match reply.kind {
                ERROR => return Err(refusal(&reply.body)?),
                kind if self.is_reply(kind) => {
                    let has_more = take(*place, &reply.body).ok_or(MALFORMED)?;
                    if !has_more {
                        places.remove(&reply.number);
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

    /// Blocks for `pause`, then checks that the switch answers an echo. Returns at once if the connection ends.
    ///
    /// # Errors
    /// Those of any call.
    pub fn watch(&mut self, pause: Duration) -> Result<(), Error> {
        self.guarded(|switch| {
            let mut timeout = SuspendAwareTimeout::new(pause);
            let ended = loop {
                // No request is open, so messages in this time do not matter.
                if let Err(error) = switch.next(&mut timeout) {
                    break error;
                }
            };
            match ended {
                Error::TimedOut { .. } => switch.ask(echo_request, |_| Some(false)),
                ended => Err(ended),
            }
        })
    }

    /// Sends messages followed by a barrier, and waits until the switch has processed them.
    fn say(&mut self, messages: impl FnOnce(u32) -> Vec<u8>) -> Result<(), Error> {
        let (number, barrier) = (self.next_number(), self.next_number());
        let mut all = messages(number);
        all.extend(message_of(self.version, self.version.barrier_request(), barrier, &[]));
        self.write(&all)?;
        let mut refused = Ok(());
        let mut timeout = SuspendAwareTimeout::new(self.deadline);
        loop {
            let reply = self.answer(&mut timeout)?;
            match reply.kind {
                kind if kind == self.version.barrier_reply() && reply.number == barrier => {
                    return refused;
                }
                // The first refusal is the cause of the others.
                ERROR if reply.number == number => {
                    refused = refused.and(Err(refusal(&reply.body)?));
                }
                _ => {}
            }
        }
    }

    /// Runs `work`, unless an earlier call broke the connection.
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
        let reply = self.next(&mut SuspendAwareTimeout::new(self.deadline))?;
        match (reply.kind, reply.version) {
            (HELLO, version) if version >= self.version.number() => Ok(()),
            (HELLO | ERROR, _) => Err(Error::Version),
            _ => Err(Error::Garbage { why: "it does not begin with a hello" }),
        }
    }

    fn next_number(&mut self) -> u32 {
        self.latest = self.latest.wrapping_add(1);
        self.latest
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|error| self.failed(error.kind()))
    }

    /// Receives the next message in the negotiated version.
    fn answer(&mut self, timeout: &mut SuspendAwareTimeout) -> Result<Reply, Error> {
        let reply = self.next(timeout)?;
        // The hello shows the highest version of the switch. Only its later messages show the version that it chose.
        if reply.version == self.version.number() { Ok(reply) } else { Err(Error::Version) }
    }

    /// Receives the next message. Echo requests are answered here.
    fn next(&mut self, timeout: &mut SuspendAwareTimeout) -> Result<Reply, Error> {
        loop {
            let reply = self.read(timeout)?;
            if reply.kind != ECHO_REQUEST {
                return Ok(reply);
            }
            self.write(&message_of(self.version, ECHO_REPLY, reply.number, &reply.body))?;
        }
    }

    fn read(&mut self, timeout: &mut SuspendAwareTimeout) -> Result<Reply, Error> {
        let mut head = [0; HEADER_LEN];
        self.fill(&mut head, timeout)?;
        let [version, kind, high, low, a, b, c, d] = head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let rest = length.checked_sub(HEADER_LEN);
        let rest = rest.ok_or(Error::Garbage { why: "a message is shorter than its header" })?;
        let mut body = vec![0; rest];
        self.fill(&mut body, timeout)?;
        Ok(Reply { version, kind, number: u32::from_be_bytes([a, b, c, d]), body })
    }

    fn fill(
        &mut self,
        mut buffer: &mut [u8],
        timeout: &mut SuspendAwareTimeout,
    ) -> Result<(), Error> {
        while !buffer.is_empty() {
            let read = timeout.wait(|most| {
                self.stream.set_read_timeout(Some(most))?;
                self.stream.read(buffer)
            });
            match read.ok_or_else(|| self.failed(ErrorKind::TimedOut))? {
                Ok(0) => return Err(self.closed()),
                Ok(read) => buffer = &mut buffer[read..],
                // The read timeout of one slice of the wait.
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
    /// Connects like [`Switch::connect`] and reads all ports. It prefers OpenFlow 1.0, the only version that reports
    /// all settings that keep frames from passing. If the bridge's `protocols` exclude it, it uses 1.3.
    ///
    /// # Errors
    /// Those of [`Switch::connect`] and of any call.
    pub fn connect(socket: &Path, deadline: Duration) -> Result<(Self, Vec<SwitchPort>), Error> {
        let connect = |version| {
            let mut switch = Self(Switch::connect_in(version, socket, deadline)?);
            let ports = switch.ports()?;
            Ok((switch, ports))
        };
        match connect(Version::V10) {
            // A bridge reports an unsupported version and closes the connection.
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

    /// Clears the settings that keep frames from passing a port.
    ///
    /// # Errors
    /// After [`Error::Refused`] nothing has changed. After other errors the port may have been changed.
    pub fn open(&mut self, port: &SwitchPort) -> Result<(), Error> {
        let version = self.0.version;
        self.0.guarded(|switch| switch.say(|number| open_port(version, number, port)))
    }
}

fn timed_out(socket: &Path, deadline: Duration) -> Error {
    Error::TimedOut { socket: socket.to_owned(), milliseconds: deadline.as_millis() }
}

/// Decodes an error message of the switch.
fn refusal(body: &[u8]) -> Result<Error, Error> {
    let (error, _) = body
        .split_first_chunk::<4>()
        .ok_or(Error::Garbage { why: "an error message without a type" })?;
    let [kind, code] = [[error[0], error[1]], [error[2], error[3]]].map(u16::from_be_bytes);
    Ok(Error::Refused { kind, code })
}
