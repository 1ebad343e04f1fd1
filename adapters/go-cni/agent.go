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

// SocketVariable names the agent's socket, unless a configuration does.
const SocketVariable = "DPU_OFFLOAD_SOCKET"

// DefaultSocket is where the agent listens.
const DefaultSocket = "/run/dpu-offload/agent.sock"

// How long the agent may take, whatever time the caller has. It gives up half a second before.
const (
	addPatience    = 90 * time.Second
	delPatience    = 50 * time.Second
	checkPatience  = 20 * time.Second
	statusPatience = 7 * time.Second
)

const (
	// How long an agent that is being replaced may be away.
	comeback = 5 * time.Second
	// How often it is looked whether it is back.
	look = 50 * time.Millisecond
	// A call that broke off after so long had an agent that was up.
	atWork = time.Second
	// An agent at work says so each second.
	silence = 10 * time.Second
	// The longest answer, in bytes.
	documentLimit = 1024 * 1024
)

// request is a call as a runtime makes it of a plugin.
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

// reply is what a plugin would print.
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

// callAgent has the agent serve a request. A call that met an agent on its way out is made again: whoever repeats a
// request gets what the first one got.
func callAgent(ctx context.Context, socket string, patience time.Duration, call request) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
			return nil, fmt.Errorf("the agent on %s can't be asked for %s: %w", socket, call.Command, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent on %s is not there: %w: %v", socket, ctx.Err(), err)
		case <-time.After(look):
		}
	}
}

// isOfRestart says whether an agent that is being replaced causes it: there is no socket, nobody listens, or who did
// went away without a word.
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

// closeWith tells the agent that nobody waits any more, who then undoes what it was at.
func closeWith(ctx context.Context, conn net.Conn, answered chan struct{}) {
	select {
	case <-ctx.Done():
		conn.Close()
	case <-answered:
	}
}

// converse asks, shuts its half of the connection down, and hears the answer.
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
		return nil, errors.New("it says nothing, as one that is suspended")
	}
	return answer, err
}

// patientReader waits for as long as something is said now and then.
type patientReader struct{ conn net.Conn }

func (r patientReader) Read(buffer []byte) (int, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return r.conn.Read(buffer)
}
