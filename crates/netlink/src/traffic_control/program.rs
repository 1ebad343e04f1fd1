//! Conditions on a frame, compiled to classic BPF, which needs no privileges beyond those for the filter.
//!
//! A program that reads beyond the end of a frame ends there, and the frame passes: `bpf_gen_ld_abs` in
//! net/core/filter.c returns 0, which is `TC_ACT_OK`. Therefore the conditions that matter come first. The later ones
//! read only fields without which no receiver can use the frame either.

/// A field of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    origin: Origin,
    offset: u32,
    size: u16,
    mask: u32,
}

/// The reference point of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// First byte of the frame.
    Frame,
    /// First byte after the IPv4 header, whose length varies.
    BehindIpv4,
}

const WORD: u16 = 0x00;
const HALF: u16 = 0x08;
const BYTE: u16 = 0x10;

/// Ancillary offsets for the tag that the kernel stripped: its value (`SKF_AD_VLAN_TAG`), its presence, and its
/// protocol (`SKF_AD_VLAN_TPID`).
const TAG: u32 = 0xffff_f02c;
const HAS_TAG: u32 = 0xffff_f030;
const TAG_PROTOCOL: u32 = 0xffff_f03c;

/// Length of an Ethernet header.
const ETHERNET_LEN: u32 = 14;

impl Field {
    pub(super) const fn word(offset: u32) -> Self {
        Self { origin: Origin::Frame, offset, size: WORD, mask: u32::MAX }
    }

    pub(super) const fn half(offset: u32) -> Self {
        Self { origin: Origin::Frame, offset, size: HALF, mask: u32::MAX }
    }

    pub(super) const fn byte(offset: u32) -> Self {
        Self { origin: Origin::Frame, offset, size: BYTE, mask: u32::MAX }
    }

    /// Two bytes after the IPv4 header.
    pub(super) const fn half_behind_ipv4(offset: u32) -> Self {
        let offset = ETHERNET_LEN + offset;
        Self { origin: Origin::BehindIpv4, offset, size: HALF, mask: u32::MAX }
    }

    /// One byte after the IPv4 header.
    pub(super) const fn byte_behind_ipv4(offset: u32) -> Self {
        Self { size: BYTE, ..Self::half_behind_ipv4(offset) }
    }

    /// Non-zero if the kernel stripped a tag.
    pub(super) const fn has_tag() -> Self {
        Self::word(HAS_TAG)
    }

    /// VLAN of the stripped tag.
    pub(super) const fn tag_vlan() -> Self {
        Self::word(TAG).masked(0x0fff)
    }

    /// Protocol of the stripped tag.
    pub(super) const fn tag_protocol() -> Self {
        Self::word(TAG_PROTOCOL)
    }

    /// Restricts the field to these bits.
    pub(super) const fn masked(self, mask: u32) -> Self {
        Self { mask, ..self }
    }

    /// The instructions that load the field, in order.
    fn load(self) -> Vec<Instruction> {
        let mut instructions = match self.origin {
            Origin::Frame => vec![plain(LOAD | self.size, self.offset)],
            Origin::BehindIpv4 => vec![
                plain(LOAD_IPV4_LEN, ETHERNET_LEN),
                plain(LOAD_BEHIND | self.size, self.offset),
            ],
        };
        if self.mask != u32::MAX {
            instructions.push(plain(MASK, self.mask));
        }
        instructions
    }
}

/// A condition on a frame.
#[derive(Clone, Debug)]
pub(super) enum Question {
    /// The field has one of these values.
    Is(Field, Vec<u32>),
    /// All conditions hold. An empty list holds.
    All(Vec<Self>),
    /// At least one condition holds. An empty list does not hold.
    Any(Vec<Self>),
    /// The condition does not hold.
    Not(Box<Self>),
}

impl Question {
    pub(super) fn is(field: Field, value: impl Into<u32>) -> Self {
        Self::Is(field, vec![value.into()])
    }

    pub(super) fn is_one_of<V: Into<u32>>(
        field: Field,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self::Is(field, values.into_iter().map(Into::into).collect())
    }

    pub(super) fn not(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// The program that continues with the next filter if the condition holds, and drops the frame if not.
    pub(super) fn program(&self) -> Program {
        let mut code = Backwards::default();
        let drop = code.prepend(DROP);
        let pass = code.prepend(PASS);
        let first = self.compile(&mut code, pass, drop);
        code.go_to(first);
        code.program()
    }

    /// Prepends the instructions of this condition and returns their start. `holds` and `fails` are the existing targets.
    fn compile(&self, code: &mut Backwards, holds: Place, fails: Place) -> Place {
        match self {
            Self::Is(field, values) => {
                let mut first = fails;
                for value in values.iter().rev() {
                    first = code.compare(*value, holds, first);
                }
                if values.is_empty() {
                    return fails;
                }
                field.load().into_iter().rev().fold(first, |_, load| code.prepend(load))
            }
            Self::All(questions) => {
                let ask = |next, question: &Self| question.compile(code, next, fails);
                questions.iter().rev().fold(holds, ask)
            }
            Self::Any(questions) => {
                let ask = |next, question: &Self| question.compile(code, holds, next);
                questions.iter().rev().fold(fails, ask)
            }
            Self::Not(question) => question.compile(code, fails, holds),
        }
    }
}

/// An instruction's distance from the end of the program: 0 is the last.
type Place = u32;

/// A program under construction. It grows from its end, because jumps only go forward: every target exists before the
/// jump to it.
#[derive(Default)]
struct Backwards(Vec<Instruction>);

impl Backwards {
    fn prepend(&mut self, instruction: Instruction) -> Place {
        self.0.push(instruction);
        self.len() - 1
    }

    fn len(&self) -> u32 {
        // The kernel limits programs to 4096 instructions.
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Number of instructions between the next prepended one and a target.
    fn distance(&self, to: Place) -> u32 {
        self.len() - 1 - to
    }

    /// Prepends a comparison. Its offsets have 8 bits, so more distant targets are reached by a jump.
    fn compare(&mut self, value: u32, holds: Place, fails: Place) -> Place {
        let near = |code: &Self, to| u8::try_from(code.distance(to)).ok();
        let skips = near(self, holds).zip(near(self, fails));
        let [holds, fails] = skips.map_or_else(
            || {
                self.jump(fails);
                self.jump(holds);
                [0, 1]
            },
            |(holds, fails)| [holds, fails],
        );
        self.prepend(Instruction { code: IS_EQUAL, skip: [holds, fails], value })
    }

    fn jump(&mut self, to: Place) {
        let distance = self.distance(to);
        self.prepend(plain(JUMP, distance));
    }

    /// Makes the program start at `first`.
    fn go_to(&mut self, first: Place) {
        if self.distance(first) != 0 {
            self.jump(first);
        }
    }

    fn program(self) -> Program {
        Program(self.0.into_iter().rev().collect())
    }
}

/// A classic BPF program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program(Vec<Instruction>);

impl Program {
    /// Number of instructions.
    pub(super) fn len(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    /// The program as an array of `struct sock_filter`.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(Instruction::bytes).collect()
    }
}

/// `struct sock_filter`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    /// Instructions to skip if a comparison holds, and if not.
    skip: [u8; 2],
    value: u32,
}

const LOAD: u16 = 0x20;
const LOAD_BEHIND: u16 = 0x40;
/// Loads the length of the IPv4 header into the index register, for [`LOAD_BEHIND`].
const LOAD_IPV4_LEN: u16 = 0xb1;
const MASK: u16 = 0x54;
const JUMP: u16 = 0x05;
const IS_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// `TC_ACT_UNSPEC`: the next filters decide.
const PASS: Instruction = plain(RETURN, u32::MAX);
/// `TC_ACT_SHOT`
const DROP: Instruction = plain(RETURN, 2);

const fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, skip: [0, 0], value }
}

impl Instruction {
    fn bytes(&self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.code.to_ne_bytes(), self.value.to_ne_bytes());
        let [then, otherwise] = self.skip;
        [a, b, then, otherwise, c, d, e, f]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a program by the kernel's rules: does the frame pass?
    fn passes(program: &Program, frame: &[u8]) -> bool {
        let (mut loaded, mut behind, mut next) = (0_u32, 0, 0);
        let load = |offset: u32, code: u16| {
            let length = match code & 0x18 {
                WORD => 4,
                HALF => 2,
                _ => 1,
            };
            let bytes = frame.get(offset as usize..offset as usize + length)?;
            Some(bytes.iter().fold(0, |before, byte| before << 8 | u32::from(*byte)))
        };
        loop {
            let Instruction { code, skip, value } = program.0[next];
            next += 1;
            match code {
                RETURN => return value == u32::MAX,
                JUMP => next += value as usize,
                MASK => loaded &= value,
                IS_EQUAL => next += usize::from(skip[usize::from(loaded != value)]),
                LOAD_IPV4_LEN => behind = 4 * (u32::from(frame[value as usize]) & 0xf),
                _ => {
                    let offset = if code & 0xe0 == LOAD_BEHIND { behind + value } else { value };
                    let Some(found) = load(offset, code) else { return true };
                    loaded = found;
                }
            }
        }
    }

    fn byte_is(offset: u32, value: u8) -> Question {
        Question::is(Field::byte(offset), value)
    }

    #[test]
    fn bpf_conditions_follow_boolean_logic() {
        let [yes, no] = [byte_is(0, 7), byte_is(0, 8)];
        let holds = |question: &Question| passes(&question.program(), &[7, 1, 2, 3]);
        let all = |of: &[&Question]| Question::All(of.iter().copied().cloned().collect());
        let any = |of: &[&Question]| Question::Any(of.iter().copied().cloned().collect());
        let true_ones = [
            yes.clone(),
            no.clone().not(),
            all(&[]),
            any(&[]).not(),
            all(&[&yes, &yes]),
            any(&[&no, &yes]),
            all(&[&any(&[&no, &yes]), &all(&[&yes, &no]).not()]),
            Question::is_one_of(Field::byte(1), [9_u8, 1]),
            Question::is(Field::half(1), 0x0102_u16),
            Question::is(Field::word(0), 0x0701_0203_u32),
            Question::is(Field::word(0).masked(0xff00), 0x0200_u32),
            Question::is_one_of(Field::byte(1), [0_u8; 0]).not(),
        ];
        for (number, question) in true_ones.into_iter().enumerate() {
            assert!(holds(&question), "{number}");
            assert!(!holds(&question.not()), "not {number}");
        }
    }

    #[test]
    fn bpf_distant_targets_use_jumps() {
        for last in [10, 300, 1000_u16] {
            let numbers = |number: u16| Question::is(Field::half(2), number);
            let program = Question::Any((0..=last).map(numbers).collect()).program();
            let frame = |number: u16| [[0; 2], number.to_be_bytes()].concat();
            for number in [0, 5, last / 2, last - 1, last] {
                assert!(passes(&program, &frame(number)), "{number} of {last}");
            }
            assert!(!passes(&program, &frame(last + 1)));
        }
    }

    #[test]
    fn fields_follow_ipv4_header_length() {
        let program = Question::is(Field::half_behind_ipv4(2), 68_u16).program();
        for words in [5, 6, 15_u8] {
            let behind = 14 + 4 * usize::from(words);
            let mut frame = vec![0; behind + 8];
            frame[14] = 0x40 | words;
            assert!(!passes(&program, &frame));
            frame[behind + 3] = 68;
            assert!(passes(&program, &frame), "{words}");
        }
    }
}
