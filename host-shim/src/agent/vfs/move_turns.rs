//! Turns for moving VFs. Moves into pods have priority, because a starting pod waits and an ended one does not. The new
//! pods of a rolling update thus do not queue behind the old ones' moves.

use std::{collections::VecDeque, sync::Arc};

use offload_proto::Failure;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::agent::defect::defect;

/// Where a VF is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into a pod; or home again for a pod that was given another.
    In,
    /// Out of a pod.
    Home,
}

/// Moves under way at the same time: the kernel does them one by one, so that one is being made while
/// one is prepared and one configured. More would only wait, each on a thread with memory of its own.
pub(in crate::agent) const MOVES: usize = 3;

/// Of these, the ones out of pods: one that has begun can't be overtaken any more.
const MOVES_HOME: usize = 2;

/// So many moves into pods may begin at most while one out of a pod waits.
const LONGEST_ROW: usize = 3;

/// The turns that are left, and who waits for one.
#[derive(Debug)]
pub(super) struct MoveTurns(Mutex<State>);

#[derive(Debug)]
struct State {
    left: usize,
    under_way_home: usize,
    /// How many moves into pods have overtaken the one out of a pod that waits longest.
    row: usize,
    inward: VecDeque<oneshot::Sender<MoveTurn>>,
    homeward: VecDeque<oneshot::Sender<MoveTurn>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct MoveTurn {
    turns: Arc<MoveTurns>,
    way: Way,
}

impl Drop for MoveTurn {
    fn drop(&mut self) {
        let mut state = self.turns.0.lock();
        state.left += 1;
        state.under_way_home -= usize::from(self.way == Way::Home);
        drop(state);
        self.turns.give();
    }
}

impl Default for MoveTurns {
    fn default() -> Self {
        Self(Mutex::new(State {
            left: MOVES,
            under_way_home: 0,
            row: 0,
            inward: VecDeque::new(),
            homeward: VecDeque::new(),
        }))
    }
}

impl MoveTurns {
    /// Waits for a turn, in the order of those who go the same way.
    ///
    /// # Errors
    /// Of kind *internal*.
    pub(super) async fn turn(self: &Arc<Self>, way: Way) -> Result<MoveTurn, Failure> {
        let (sender, turn) = oneshot::channel();
        self.0.lock().waiting(way).push_back(sender);
        self.give();
        // The task that removes the sender from the queue sends a turn.
        turn.await.map_err(|error| defect(&error))
    }

    /// Gives free turns to waiting tasks. An abandoned turn returns when it is dropped, which happens without the lock.
    fn give(self: &Arc<Self>) {
        loop {
            let mut state = self.0.lock();
            let Some((way, waiting)) = state.next() else { return };
            drop(state);
            drop(waiting.send(MoveTurn { turns: Arc::clone(self), way }));
        }
    }
}

impl State {
    fn waiting(&mut self, way: Way) -> &mut VecDeque<oneshot::Sender<MoveTurn>> {
        match way {
            Way::In => &mut self.inward,
            Way::Home => &mut self.homeward,
        }
    }

    /// Takes the turn of the next waiting task.
    fn next(&mut self) -> Option<(Way, oneshot::Sender<MoveTurn>)> {
        let way = self.next_way().filter(|_| self.left > 0)?;
        let waiting = self.waiting(way).pop_front()?;
        self.left -= 1;
        match way {
            Way::In if self.homeward.is_empty() => self.row = 0,
            Way::In => self.row += 1,
            Way::Home => (self.under_way_home, self.row) = (self.under_way_home + 1, 0),
        }
        Some((way, waiting))
    }

    fn next_way(&self) -> Option<Way> {
        let may_go_home = !self.homeward.is_empty() && self.under_way_home < MOVES_HOME;
        let is_inward_next = !self.inward.is_empty() && (self.row < LONGEST_ROW || !may_go_home);
        match (is_inward_next, may_go_home) {
            (true, _) => Some(Way::In),
            (false, true) => Some(Way::Home),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::BoxFuture};

    use super::*;

    fn turns() -> Arc<MoveTurns> {
        Arc::default()
    }

    fn wait(turns: &Arc<MoveTurns>, way: Way) -> BoxFuture<'static, MoveTurn> {
        let turns = Arc::clone(turns);
        let mut waiting = async move { turns.turn(way).await.unwrap() }.boxed();
        assert!((&mut waiting).now_or_never().is_none(), "there is a turn");
        waiting
    }

    fn take(turns: &Arc<MoveTurns>, way: Way) -> MoveTurn {
        turns.turn(way).now_or_never().expect("there is no turn").unwrap()
    }

    #[test]
    fn moves_in_have_priority() {
        let turns = turns();
        let homeward = [take(&turns, Way::Home), take(&turns, Way::Home)];
        let last = take(&turns, Way::In);
        let (mut home, mut inward) = (wait(&turns, Way::Home), wait(&turns, Way::In));
        drop(homeward);
        assert!((&mut inward).now_or_never().is_some());
        assert!((&mut home).now_or_never().is_some(), "the other turn is left for it");
        drop(last);
    }

    #[test]
    fn moves_out_leave_a_turn_for_moves_in() {
        let turns = turns();
        let homeward = [take(&turns, Way::Home), take(&turns, Way::Home)];
        let mut third = wait(&turns, Way::Home);
        drop(take(&turns, Way::In));
        assert!((&mut third).now_or_never().is_none());
        drop(homeward);
        assert!(third.now_or_never().is_some());
    }

    #[test]
    fn move_out_waits_for_bounded_moves_in() {
        let turns = turns();
        let _held = [take(&turns, Way::In), take(&turns, Way::In)];
        let mut under_way = take(&turns, Way::In);
        let mut overtaken_by = 0;
        for home in &mut [wait(&turns, Way::Home), wait(&turns, Way::Home)] {
            let inward = loop {
                let mut inward = wait(&turns, Way::In);
                drop(under_way);
                let Some(turn) = (&mut inward).now_or_never() else { break inward };
                under_way = turn;
                overtaken_by += 1;
                assert!(overtaken_by <= LONGEST_ROW);
            };
            assert_eq!(overtaken_by, LONGEST_ROW);
            drop(home.now_or_never().expect("it has waited long enough"));
            // It is the first to overtake the next one.
            under_way = inward.now_or_never().expect("there is a turn");
            overtaken_by = 1;
        }
    }

    #[test]
    fn abandoned_turn_goes_to_the_next() {
        let turns = turns();
        let held: Vec<_> = (0..MOVES).map(|_| take(&turns, Way::In)).collect();
        let gone = wait(&turns, Way::In);
        let mut next = wait(&turns, Way::In);
        drop(gone);
        drop(held);
        assert!((&mut next).now_or_never().is_some());
        let all: Vec<_> = (0..MOVES - 1).map(|_| take(&turns, Way::In)).collect();
        drop(all);
    }
}
