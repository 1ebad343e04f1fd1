//! One call of another plugin, as a runtime makes it.

use std::{
    fs::File,
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout_at,
};

/// Longest answer, in bytes.
const ANSWER_LIMIT: u64 = 1024 * 1024;
/// How much is kept of what a plugin says on standard error, in bytes.
const ERROR_LIMIT: u64 = 4096;
/// How long after a plugin's end its answer's end is waited for: a program that it has left behind may hold it open.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Longest text of another plugin that is repeated, in bytes.
const LONGEST_REPEATED: usize = 256;

/// What a plugin is called with in addition to its document. Empty: the call is for no interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    pub container_id: String,
    /// The pod's namespace. Empty: it has ended.
    pub netns: String,
    pub interface_name: String,
    pub arguments: String,
    /// Where a plugin looks for others, such as for IPAM.
    pub folders: String,
}

/// Why a plugin has not done what it was called for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// It could not be started.
    #[error("it cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It took too long.
    #[error("it did not end in time, and was killed")]
    Late,
    /// It said too much.
    #[error("it answered more than {ANSWER_LIMIT} bytes, and was killed")]
    Long,
    /// It refused, in the words of the specification.
    #[error("code {code}: {text}")]
    Refused {
        /// The specification's code, or its own.
        code: u64,
        /// Its message and details.
        text: String,
    },
    /// It failed without such words.
    #[error("{status}, {said}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// It succeeded with an answer that is none.
    #[error("its answer is no JSON object: {0}")]
    Garbage(String),
    /// The system failed.
    #[error("its output cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// An error object of the specification.
#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    code: u64,
    msg: String,
    #[serde(default)]
    details: String,
}

/// Calls a program and returns its answer. `None`: it said nothing. `stdin`, which the document is written into, stays
/// open with the program, and so does the lock on it.
pub(super) async fn call(
    program: &Path,
    verb: &str,
    surroundings: &Surroundings,
    document: &Value,
    stdin: &File,
    deadline: Instant,
) -> Result<Option<Value>, Trouble> {
    let stdin = holding(stdin, document)?;
    let child = command(program, verb, surroundings, stdin).spawn().map_err(Trouble::Start)?;
    let (status, answer, said) = hear(child, deadline).await?;
    match status.success() {
        true => read_answer(&answer),
        false => Err(read_failure(status, &answer, &said)),
    }
}

fn holding(mut file: &File, document: &Value) -> io::Result<Stdio> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(document.to_string().as_bytes())?;
    file.rewind()?;
    Ok(file.try_clone()?.into())
}

fn command(program: &Path, verb: &str, surroundings: &Surroundings, stdin: Stdio) -> Command {
    let mut command = Command::new(program);
    // Nothing of the agent's own environment is the plugin's business, but where programs are.
    command.env_clear();
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", &surroundings.container_id);
    command.env("CNI_NETNS", &surroundings.netns).env("CNI_IFNAME", &surroundings.interface_name);
    command.env("CNI_ARGS", &surroundings.arguments).env("CNI_PATH", &surroundings.folders);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that what it has started is killed with it.
    command.process_group(0).kill_on_drop(true);
    command
}

/// Waits for a program's end, and no longer than until `deadline`.
async fn hear(
    mut child: Child,
    deadline: Instant,
) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), Trouble> {
    let group = child.id();
    let heard = timeout_at(deadline.into(), hear_all(&mut child)).await;
    let trouble = match heard {
        Ok(Ok(heard)) => return Ok(heard),
        Ok(Err(trouble)) => trouble,
        Err(_) => Trouble::Late,
    };
    if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
        // The group may have ended since.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    child.wait().await?;
    Err(trouble)
}

async fn hear_all(child: &mut Child) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), Trouble> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut answer = Vec::new();
    let mut said = Vec::new();
    let ended = {
        let mut hearing = std::pin::pin!(async {
            let answered = hear_answer(stdout, &mut answer);
            let complained = hear_beginning(stderr, &mut said);
            tokio::try_join!(answered, complained)
        });
        let ended = tokio::select! {
            heard = &mut hearing => { heard?; None }
            ended = child.wait() => Some(ended?),
        };
        if ended.is_some()
            && let Ok(heard) = tokio::time::timeout(END_LIMIT, hearing).await
        {
            heard?;
        }
        ended
    };
    let status = match ended {
        Some(status) => status,
        None => child.wait().await?,
    };
    Ok((status, answer, said))
}

async fn hear_answer(
    stream: Option<impl AsyncRead + Unpin>,
    answer: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let Some(stream) = stream else { return Ok(()) };
    stream.take(ANSWER_LIMIT + 1).read_to_end(answer).await?;
    match answer.len() as u64 > ANSWER_LIMIT {
        true => Err(Trouble::Long),
        false => Ok(()),
    }
}

/// Reads and drops the rest, so that the writer does not block.
async fn hear_beginning(
    stream: Option<impl AsyncRead + Unpin>,
    said: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let Some(mut stream) = stream else { return Ok(()) };
    (&mut stream).take(ERROR_LIMIT).read_to_end(said).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(())
}

fn read_answer(answer: &[u8]) -> Result<Option<Value>, Trouble> {
    if answer.trim_ascii().is_empty() {
        return Ok(None);
    }
    match serde_json::from_slice(answer) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        _ => Err(Trouble::Garbage(repeated(answer))),
    }
}

fn read_failure(status: ExitStatus, answer: &[u8], said: &[u8]) -> Trouble {
    if let Ok(ErrorObject { code, msg, details }) = serde_json::from_slice(answer) {
        let text = match details.is_empty() {
            true => msg,
            false => format!("{msg}; {details}"),
        };
        return Trouble::Refused { code, text: repeated(text.as_bytes()) };
    }
    let said = match [answer, said].map(<[u8]>::trim_ascii) {
        [[], []] => "and said nothing".to_owned(),
        [[], said] => format!("and said {:?}", repeated(said)),
        [answer, _] => format!("and answered {:?}", repeated(answer)),
    };
    Trouble::Failed { status, said }
}

/// A text of another plugin for a message of ours.
fn repeated(text: &[u8]) -> String {
    bootstrap::cut(String::from_utf8_lossy(text.trim_ascii()).into_owned(), LONGEST_REPEATED)
}

/// Where the program of a plugin is. `None`: in none of the folders.
pub(super) fn find<'a>(
    mut folders: impl Iterator<Item = &'a PathBuf>,
    name: &str,
) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use serde_json::json;
    use test_clock::Stopwatch;

    use super::*;

    /// What comes of calling a plugin that is this script.
    async fn called(script: &str, patience: Duration) -> Result<Option<Value>, Trouble> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("plugin");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let surroundings = Surroundings {
            container_id: "c".into(),
            netns: "/run/netns/c".into(),
            interface_name: "net1".into(),
            arguments: "A=b".into(),
            folders: "/opt/cni/bin".into(),
        };
        let document = json!({"name": "n"});
        let stdin = tempfile::tempfile().unwrap();
        let deadline = Instant::now() + patience;
        call(&program, "ADD", &surroundings, &document, &stdin, deadline).await
    }

    const LIMIT: Duration = Duration::from_secs(30);

    async fn trouble(script: &str) -> String {
        called(script, LIMIT).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn plugin_is_called_like_by_a_runtime() {
        let script = r#"read -r document
            printf '{"document": %s, "told": "%s"}' "$document" \
                "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS $CNI_PATH ${HOME-}""#;
        let answer = called(&script.replace("read -r document", "document=$(cat)"), LIMIT).await;
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer["document"], json!({"name": "n"}));
        assert_eq!(answer["told"], "ADD c /run/netns/c net1 A=b /opt/cni/bin ");
        assert!(called("exit 0", LIMIT).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn plugin_errors_are_passed_on() {
        let refusal = r#"echo '{"code": 7, "msg": "no master", "details": "eth9"}'; exit 1"#;
        assert_eq!(trouble(refusal).await, "code 7: no master; eth9");
        assert!(trouble("exit 3").await.starts_with("exit status: 3, "));
        assert_eq!(trouble("echo ouch >&2; exit 3").await, "exit status: 3, and said \"ouch\"");
        assert_eq!(trouble("echo hi; exit 1").await, "exit status: 1, and answered \"hi\"");
        assert!(trouble("echo hi").await.ends_with(" JSON object: hi"));
        assert!(trouble("kill -9 $$").await.starts_with("signal: 9"));
        let endless = trouble("head -c 3000000 /dev/zero").await;
        assert!(endless.contains("1048576 bytes") && endless.contains("killed"), "{endless}");
    }

    #[tokio::test]
    async fn hanging_plugin_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // A process that has the file open for writing is alive.
        let script = format!("sh -c 'exec 3>{0}; sleep 600' & sleep 600", fifo.display());
        let (late, written) = tokio::join!(
            called(&script, Duration::from_millis(500)),
            tokio::task::spawn_blocking(move || fs::read(fifo)),
        );
        assert!(matches!(late, Err(Trouble::Late)), "{late:?}");
        assert_eq!(written.unwrap().unwrap(), b"", "its child has ended, too");
    }

    #[tokio::test]
    async fn plugins_leftover_processes_block_nothing() {
        let begun = Stopwatch::start();
        let answer = called("sleep 600 & echo '{}'", LIMIT).await.unwrap();
        assert_eq!(answer, Some(json!({})));
        assert!(begun.unstalled() < LIMIT / 2);
    }

    #[tokio::test]
    async fn long_plugin_stderr_blocks_nothing() {
        let answer = called("head -c 3000000 /dev/zero >&2; echo '{}'", LIMIT).await.unwrap();
        assert_eq!(answer, Some(json!({})));
    }
}
