# Builds tests, runs those of a profile, and counts them. Sourced by hack/test, never run.
# shellcheck shell=bash

# Process groups that run tests, by profile, or that prepare something in advance.
declare -A JOBS=()
# A profile whose tests run_tests omits, or nothing. Callers set it for one call.
OMITTED=

# uses_nextest: nextest refuses expressions about binaries that were not built, as with a NAME.
uses_nextest() { [[ ! $NAME ]] && cargo nextest --version >/dev/null 2>&1; }

# linted COMMAND...: builds with clippy as the compiler of the workspace's crates, so that one pass does both. A warning
# is an error.
linted() {
    RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ "$@"
}

# build_once: builds all tests, or with a NAME what its tests need, unless that is done.
build_once() {
    local targets=() before=$FAILED
    [[ -z ${BUILD_STATUS:-} ]] || return "$BUILD_STATUS"
    BUILD_STATUS=1
    # shellcheck disable=SC2207 # words of cargo's command line
    [[ ! $NAME ]] || targets=($(targets_with "$NAME"))
    title "building programs and tests, with clippy; minutes the first time"
    mkdir -p "$TESTS"
    check "build and clippy" build_tests "${targets[@]}"
    ((FAILED == before)) || return 1
    export OFFLOAD_BIN_DIR=${OFFLOAD_BIN_DIR:-$TARGET/$PROFILE} OFFLOAD_ROOT=$ROOT
    BUILD_STATUS=0
}

# build_tests TARGET...: also records the tests' places, for runs where nothing can be built. With targets the programs
# that tests run are built first: otherwise cargo builds only their unit tests.
build_tests() {
    local what=("${WORKSPACE[@]}" "$@")
    (($# == 0)) || linted cargo build "${WORKSPACE[@]}" --bins --profile "$PROFILE" --quiet || return
    if uses_nextest; then
        linted cargo nextest run "${what[@]}" --cargo-profile "$PROFILE" --no-run --cargo-quiet &&
            cargo metadata --format-version 1 --all-features --locked --filter-platform "$(host)" >"$TESTS/cargo.json" &&
            linted cargo nextest list "${what[@]}" --cargo-profile "$PROFILE" --list-type binaries-only \
                --message-format json --cargo-quiet >"$TESTS/binaries.json"
    else
        linted cargo test "${what[@]}" --profile "$PROFILE" --no-run --quiet --message-format json-render-diagnostics \
            >"$TESTS/artifacts.json" && executables <"$TESTS/artifacts.json" >"$TESTS/executables"
    fi
}

host() { rustc -vV | sed -n 's/^host: //p'; }

# executables: reads cargo's messages and prints a line for each test binary: its id in nextest, its path, its package's
# folder.
executables() {
    jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable)
        | (.manifest_path | rtrimstr("/Cargo.toml")) as $folder
        | (.package_id | split("#")[1] | if contains("@") then split("@")[0] else ($folder | split("/")[-1]) end) as $package
        | .target.kind[0] as $kind
        | [ if $kind == "lib" then $package elif $kind == "test" then "\($package)::\(.target.name)"
            else "\($package)::\($kind)/\(.target.name)" end, .executable, $folder ] | join(" ")'
}

# targets_with NAME: cargo's arguments for the programs and the targets with such a function or module. Prints nothing,
# which means all targets, if that is unclear. Dependencies always have the whole workspace's features.
targets_with() {
    local files file folder target words=--bins last=${1%::}
    mapfile -t files < <(git grep --untracked -lE "(fn|mod) [a-z0-9_]*${last##*::}" -- '*.rs' 2>/dev/null)
    ((${#files[@]})) || return 0
    for file in "${files[@]}"; do
        case $file in
            tests/src/*) words+=$'\n'$(printf -- '--test %s\n' e2e vm arm runtime kubernetes) ;;
            tests/tests/* | */tests/*)
                folder=${file%tests/*}tests
                # Unit tests may be in a folder of that name.
                [[ -e ${folder%tests}Cargo.toml ]] || { words+=$'\n'--lib && continue; }
                target=${file#"$folder/"} && target=${target%%/*}
                [[ -e $folder/$target && $target == *.rs || -e $folder/$target/main.rs ]] || return 0
                words+=$'\n'"--test ${target%.rs}"
                ;;
            *) words+=$'\n'--lib ;;
        esac
    done
    sort -u <<<"$words"
}

# doc_tests: run by cargo itself.
doc_tests() {
    local output status=0 passed failed ignored
    output=$(linted cargo test "${WORKSPACE[@]}" --profile "$PROFILE" --doc --quiet 2>&1) || status=$?
    while read -r passed failed ignored; do
        PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed)) SKIPPED=$((SKIPPED + ignored))
    done < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' <<<"$output")
    ((status == 0)) || { warn "$output" && fail "doc tests"; }
    grep -q '^test result: ' <<<"$output" || fail "no doc test was run"
}

# selected PROFILE SIGN: pairs of regular expressions, of binaries' ids and of tests' paths, with a blank between them.
# A profile NAME-1 or NAME-2 is the first or second half of NAME's tests.
selected() { awk -v profile="${1%-[12]}" -v sign="$2" '$1 == profile && $2 == sign {print $3, $4}' "$ROOT/hack/test.d/selection"; }

# runner PROFILE [OMITTED_PROFILE]: sets RUNNER to the command that runs a profile's tests, or those of NAME, even where
# nothing can be built. It writes their results to target/nextest/PROFILE/junit.xml.
runner() {
    local profile=$1 omitted=${2:-}
    RUNNER=()
    if uses_nextest; then
        RUNNER=(cargo-nextest nextest run --workspace-remap "$ROOT" --cargo-metadata "$TESTS/cargo.json"
            --binaries-metadata "$TESTS/binaries.json" --profile "$profile" --filterset "$(filterset "$profile" "$omitted")")
        [[ $profile != *-[12] ]] || RUNNER+=(--partition "count:${profile##*-}/2")
    else
        {
            selected "$profile" + | sed 's/^/+ /'
            selected "$profile" - | sed 's/^/- /'
            [[ ! $omitted ]] || selected "$omitted" + | sed 's/^/- /'
        } >"$TESTS/$profile.selection"
        [[ $profile != *-[12] ]] || RUNNER=(env "OFFLOAD_TEST_PART=${profile##*-}/2")
        RUNNER+=("$ROOT/hack/test.d/without-nextest" "$TESTS/executables" "$TESTS/$profile.selection"
            "$ROOT/target/nextest/$profile" "$NAME")
    fi
}

# filterset PROFILE OMITTED_PROFILE: in nextest's filter language.
filterset() {
    local without
    without=$(selected "$1" - && { [[ ! $2 ]] || selected "$2" +; })
    say "($(union <<<"$(selected "$1" +)"))${without:+ - ($(union <<<"$without"))}"
}

# union: of pairs of regular expressions, one per line.
union() { sed 's,^\(.*\) \(.*\)$,(binary_id(/\1/) \& test(/\2/)),' | paste -sd'+'; }

# run_tests PROFILE WHAT [COMMAND...]: runs the tests of a profile with that command.
run_tests() {
    local profile=$1 status=0
    title "$2"
    shift 2
    runner "$profile" "$OMITTED"
    mkdir -p "target/nextest/$profile"
    rm -f "$(report_of "$profile")"
    "$@" "${RUNNER[@]}" </dev/null || status=$?
    count_report "$profile" "$status"
}

# at_once RUN PROFILE...: runs the tests of these profiles concurrently, each with `RUN PROFILE`, and reports them one
# after the other.
at_once() {
    local profile
    for profile in "${@:2}"; do begin_tests "$1" "$profile"; done
    for profile in "${@:2}"; do finish_tests "$profile"; done
}

# begin_tests RUN PROFILE
begin_tests() {
    mkdir -p "target/nextest/$2"
    rm -f "$(report_of "$2")"
    runner "$2"
    begin_job "$2" "target/nextest/$2/output" "$1" "$2"
}

# begin_job NAME OUTPUT COMMAND...: in a process group of its own.
begin_job() {
    set -m
    "${@:3}" </dev/null >"$2" 2>&1 &
    JOBS[$1]=$!
    set +m
}

finish_tests() {
    local status=0
    wait "${JOBS[$1]}" || status=$?
    unset "JOBS[$1]"
    cat "target/nextest/$1/output"
    count_report "$1" "$status"
}

# begin_ahead WHAT COMMAND...: starts what a later tier needs.
begin_ahead() {
    mkdir -p "$TESTS"
    begin_job "ahead-$1" "$TESTS/ahead-$1" chrt --idle 0 "${@:2}"
}

# await_ahead WHAT: waits for it. The tier that needs it tries again after a failure and reports it.
await_ahead() {
    [[ ${JOBS[ahead-$1]:-} ]] || return 0
    wait "${JOBS[ahead-$1]}" || true
    unset "JOBS[ahead-$1]"
}

end_jobs() {
    local job
    for job in "${JOBS[@]}"; do kill -- "-$job" 2>/dev/null || true; done
}

report_of() { say "target/nextest/$1/junit.xml"; }

# count_report PROFILE STATUS: counts what was reported before the run ended with that status.
count_report() {
    local report before=$FAILED tests=0 failures errors
    report=$(report_of "$1")
    if [[ -s $report ]]; then
        tests=$(attribute "$report" tests) failures=$(attribute "$report" failures) errors=$(attribute "$report" errors)
        RUN=$((RUN + tests)) FAILED=$((FAILED + failures + errors)) PASSED=$((PASSED + tests - failures - errors))
        REASONS+=$(reasons "$report")
        say "   $1: $((tests - failures - errors)) of $tests tests passed, at minute $((SECONDS / 60))"
    fi
    [[ $NAME || ${tests:-0} != 0 ]] || fail "no test of profile $1 was run"
    # An aborted run has no failed test to count.
    (($2 == 0 || FAILED > before)) || FAILED=$((FAILED + 1))
}

attribute() { sed -n "s/^<testsuites .*[^a-z]$2=\"\([0-9]*\)\".*/\1/p" "$1"; }

# reasons REPORT: each failed test with the first lines of its failure, one per line.
reasons() {
    awk '
        /<testcase / { test = $0; sub(/.*<testcase name="/, "", test); sub(/".*/, "", test) }
        /<(failure|error)[ >]/ { left = 8; is_last = /\/>$/; sub(/.*<(failure|error)[^>]*>/, "\n" test ": ") }
        /^stack backtrace:/ { left = 0 }
        /<\/(failure|error)>/ { is_last = 1; sub(/<\/(failure|error)>.*/, "") }
        left-- > 0 { print substr($0, 1, 500) }
        is_last { left = is_last = 0 }
    ' "$1" | sed "s/&apos;/'/g; s/&quot;/\"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g"
}
