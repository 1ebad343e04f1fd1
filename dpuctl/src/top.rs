//! `dpuctl top`: what happens from one look at the DPU to the next.

mod phases;
mod traffic;

use jiff::Timestamp;
use offload_proto::v1::{ListPhasesResponse, ListTrafficResponse};
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    arguments::{Format, Top},
    client::Client,
    console::Console,
    error::CallError,
    format::{json_line, yaml},
};

/// How many rows a screen shows of those that may be many, unless it is told how many.
const SCREENFUL: usize = 20;

/// What is printed next takes the place of what is on the screen.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[J";

/// Counters, as they were at a time.
trait Look: Serialize + Sized {
    /// Asks the DPU.
    async fn take(client: &mut Client, what: &Top) -> Result<Self, CallError>;

    /// What has happened since the look `before`, in as many `lines` at most if there may be many.
    fn table(&self, before: &Self, lines: usize, wide: bool) -> String;

    /// What is said in place of a table without rows. `None`: it has some.
    fn nothing(&self) -> Option<&'static str> {
        None
    }

    /// What is said beside the table.
    fn warning(&self) -> Option<String> {
        None
    }
}

/// Only an interrupt ends it well, unless one table is wanted.
pub(crate) async fn top(
    client: &mut Client,
    what: &Top,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    if what.phases {
        show::<ListPhasesResponse>(client, what, console).await
    } else {
        show::<ListTrafficResponse>(client, what, console).await
    }
}

async fn show<L: Look>(
    client: &mut Client,
    what: &Top,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    match what.output {
        Format::Table => changes::<L>(client, what, false, console).await,
        Format::Wide => changes::<L>(client, what, true, console).await,
        Format::Json => counters::<L>(client, what, json_line, console).await,
        Format::Yaml => {
            let document = |look: &_| Ok(format!("---\n{}", yaml(look)?.trim_end()));
            counters::<L>(client, what, document, console).await
        }
    }
}

/// For people: what happens from one look to the next.
async fn changes<L: Look>(
    client: &mut Client,
    what: &Top,
    wide: bool,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    let mut before = L::take(client, what).await?;
    loop {
        sleep(what.interval()).await;
        let now = L::take(client, what).await?;
        let most = if console.is_screen { SCREENFUL } else { usize::MAX };
        let lines = what.lines.map_or(most, |lines| lines.try_into().unwrap_or(usize::MAX));
        let table = now.table(&before, lines, wide);
        match (console.is_screen && !what.once, now.nothing()) {
            (true, _) => {
                let warning = now.warning().map(|line| line + "\n").unwrap_or_default();
                console.print(&format!("{CLEAR_SCREEN}{warning}{table}"))?;
            }
            (false, Some(nothing)) => console.note(nothing)?,
            (false, None) => {
                now.warning().map_or(Ok(()), |line| console.note(&line))?;
                console.print(&table)?;
            }
        }
        if what.once {
            return Ok(());
        }
        before = now;
    }
}

/// For programs: the counters of each look.
async fn counters<L: Look>(
    client: &mut Client,
    what: &Top,
    encoded: impl Fn(&L) -> Result<String, CallError>,
    console: &mut Console<'_>,
) -> Result<(), CallError> {
    loop {
        console.line(&encoded(&L::take(client, what).await?)?)?;
        if what.once {
            return Ok(());
        }
        sleep(what.interval()).await;
    }
}

/// How long it was from one look to the other, as the DPU says. `None`: its clock was set meanwhile.
fn seconds_between(before: &str, now: &str) -> Option<f64> {
    let (before, now) = (before.parse::<Timestamp>().ok()?, now.parse::<Timestamp>().ok()?);
    Some(now.duration_since(before).as_secs_f64()).filter(|seconds| *seconds > 0.0)
}
