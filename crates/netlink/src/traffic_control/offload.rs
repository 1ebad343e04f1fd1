//! Counts of filters in hardware.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcFilterFlowerOption, TcHandle, TcMessage, TcOption},
};

use super::{flower::leave_to_kernel, hook::Hook};

/// `TCA_CLS_FLAGS_IN_HW`
const IN_HARDWARE: u32 = 1 << 2;

/// Number of flower filters at a link's ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Number of filters.
    pub filters: u64,
    /// Number of filters that the hardware carries out, without those that trap frames to the kernel.
    pub in_hardware: u64,
}

pub(super) fn list_message(index: u32) -> RouteNetlinkMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = Hook::Ingress.handle();
    RouteNetlinkMessage::GetTrafficFilter(message)
}

/// Whether a filter is carried out in hardware. `None`: the object is not a flower filter, the only kind that cards
/// take over.
pub(crate) fn described_by(object: RouteNetlinkMessage) -> Option<bool> {
    let RouteNetlinkMessage::NewTrafficFilter(message) = object else { return None };
    // The kernel lists each priority once more without a filter.
    if message.header.handle == TcHandle::UNSPEC {
        return None;
    }
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let of_flower: Vec<_> = options.iter().filter_map(flower_option).collect();
    let is_kept_there = of_flower.iter().any(|option| is_in_hardware(option));
    let is_the_kernels = of_flower.iter().any(|option| is_left_to_kernel(option));
    (!of_flower.is_empty()).then_some(is_kept_there && !is_the_kernels)
}

fn flower_option(option: &TcOption) -> Option<&TcFilterFlowerOption> {
    match option {
        TcOption::Flower(option) => Some(option),
        _ => None,
    }
}

fn is_in_hardware(option: &TcFilterFlowerOption) -> bool {
    matches!(option, TcFilterFlowerOption::Flags(flags) if flags & IN_HARDWARE != 0)
}

fn is_left_to_kernel(option: &TcFilterFlowerOption) -> bool {
    matches!(option, TcFilterFlowerOption::Actions(actions) if leave_to_kernel(actions))
}

impl FromIterator<bool> for Offload {
    /// Counts filters: `true` is in hardware.
    fn from_iter<I: IntoIterator<Item = bool>>(filters: I) -> Self {
        filters.into_iter().fold(Self::default(), |so_far, is_in_hardware| Self {
            filters: so_far.filters + 1,
            in_hardware: so_far.in_hardware + u64::from(is_in_hardware),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::flower::Verdict, *};

    const NOT_IN_HARDWARE: u32 = 1 << 3;

    fn filter(kind: &str, options: Vec<TcFilterFlowerOption>) -> RouteNetlinkMessage {
        let mut message = TcMessage::with_index(7);
        message.header.handle = 1.into();
        let options = options.into_iter().map(TcOption::Flower).collect();
        message.attributes =
            vec![TcAttribute::Kind(kind.to_owned()), TcAttribute::Options(options)];
        RouteNetlinkMessage::NewTrafficFilter(message)
    }

    #[test]
    fn offloaded_filters_are_counted() {
        use TcFilterFlowerOption::{Actions, ClassId, Flags};
        let listed = [
            filter("flower", vec![ClassId(1), Flags(IN_HARDWARE)]),
            filter("flower", vec![Flags(IN_HARDWARE), Actions(vec![Verdict::Pass.action()])]),
            filter("flower", vec![Flags(IN_HARDWARE), Actions(vec![Verdict::Trap.action()])]),
            filter("flower", vec![Flags(NOT_IN_HARDWARE)]),
            // Older kernels do not report the flag.
            filter("flower", vec![ClassId(1)]),
            filter("bpf", Vec::new()),
        ];
        let offload: Offload = listed.into_iter().filter_map(described_by).collect();
        assert_eq!(offload, Offload { filters: 5, in_hardware: 2 });

        let RouteNetlinkMessage::NewTrafficFilter(mut head) = filter("flower", vec![ClassId(1)])
        else {
            unreachable!()
        };
        head.header.handle = TcHandle::UNSPEC;
        assert_eq!(described_by(RouteNetlinkMessage::NewTrafficFilter(head)), None);
    }
}
