package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// SocketVariable is the environment variable for the agent's socket. A configuration overrides it.
const SocketVariable = "DPU_OFFLOAD_SOCKET"

// DefaultSocket is the agent's socket by default.
const DefaultSocket = "/run/dpu-offload/agent.sock"

// Time limits of the agent, independent of the caller's. The agent gives up half a second earlier.
const (
	addTimeout    = 90 * time.Second
	delTimeout    = 50 * time.Second
	checkTimeout  = 20 * time.Second
	statusTimeout = 7 * time.Second
)

const (
	// How long an agent may be away while it is replaced.
	comeback = 5 * time.Second
	// Interval between attempts to reach it again.
	look = 50 * time.Millisecond
	// If a call broke off after this time, its agent was running.
	atWork = time.Second
	// Longest silence of an agent at work, which sends a heartbeat every second.
	silence = 10 * time.Second
	// The longest answer, in bytes.
	documentLimit = 1024 * 1024
)

// request is a call in the form in which a runtime makes it to a plugin.
type request struct {
	DeadlineMS    int64                      `json:"deadline_ms"`
	Verb          string                     `json:"verb"`
	Command       string                     `json:"command"`
	ContainerID   string                     `json:"container_id"`
	Netns         string                     `json:"netns"`
	IfName        string                     `json:"interface_name"`
	Args          string                     `json:"args"`
	Configuration map[string]json.RawMessage `json:"configuration"`
}

// reply is the output of a plugin.
type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *types.Error    `json:"error"`
}

func socketOr(socket string) string {
	if socket != "" {
		return socket
	}
	if socket := os.Getenv(SocketVariable); socket != "" {
		return socket
	}
	return DefaultSocket
}

// callAgent sends a request to the agent. It repeats a call that met a stopping agent: a repeated request has the same
// result as the first.
func callAgent(ctx context.Context, socket string, timeout time.Duration, call request) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	away := time.Now()
	for {
		asked := time.Now()
		answer, err := ask(ctx, socket, call)
		if err == nil {
			if answer.Error != nil {
				return nil, answer.Error
			}
			return answer.Result, nil
		}
		if time.Since(asked) > atWork {
			away = time.Now()
		}
		if !isOfRestart(err) || time.Since(away) >= comeback {
			return nil, fmt.Errorf("cannot send %s to the agent on %s: %w", call.Command, socket, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent on %s does not answer: %w: %v", socket, ctx.Err(), err)
		case <-time.After(look):
		}
	}
}

// isOfRestart reports whether a restart of the agent can cause the error: the socket does not exist, no process listens
// on it, or the listener ended without an answer.
func isOfRestart(err error) bool {
	for _, cause := range []error{
		fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

func ask(ctx context.Context, socket string, call request) (*reply, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answered := make(chan struct{})
	defer close(answered)
	go closeWith(ctx, conn, answered)
	answer, err := converse(ctx, conn.(*net.UnixConn), call)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return answer, err
}

// closeWith closes the connection when the caller stops waiting, which makes the agent undo the call.
func closeWith(ctx context.Context, conn net.Conn, answered chan struct{}) {
	select {
	case <-ctx.Done():
		conn.Close()
	case <-answered:
	}
}

// converse sends the request, shuts down its half of the connection, and reads the answer.
func converse(ctx context.Context, conn *net.UnixConn, call request) (*reply, error) {
	if deadline, ok := ctx.Deadline(); ok {
		call.DeadlineMS = time.Until(deadline).Milliseconds()
	}
	if err := json.NewEncoder(conn).Encode(call); err != nil {
		return nil, err
	}
	if err := conn.CloseWrite(); err != nil {
		return nil, err
	}
	answer := &reply{}
	err := json.NewDecoder(io.LimitReader(patientReader{conn}, documentLimit)).Decode(answer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errors.New("it sends no heartbeats; it may be suspended")
	}
	return answer, err
}

// patientReader reads as long as heartbeats arrive.
type patientReader struct{ conn net.Conn }

func (r patientReader) Read(buffer []byte) (int, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return r.conn.Read(buffer)
}
