package cni

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Result is the result for a namespace. Its JSON form is complete.
type Result struct {
	Interfaces map[string]*Config
	DNS        []types.DNS
	Routes     []*types.Route
	raw        []*types100.Result
}

// Raw returns the CNI results, one for each network.
func (r *Result) Raw() []*types100.Result {
	return r.raw
}

// Config is the configuration of an interface.
type Config struct {
	IPConfigs  []*IPConfig
	Mac        string
	Sandbox    string
	PciID      string
	SocketPath string
}

// The keys are go-cni's, so that a runtime can read with one package what it stored with the other.
type storedResult struct {
	Interfaces map[string]*Config
	DNS        []types.DNS
	Routes     []*types.Route
	Raw        []*types100.Result `json:",omitempty"`
}

// MarshalJSON writes the whole result.
func (r *Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(storedResult{Interfaces: r.Interfaces, DNS: r.DNS, Routes: r.Routes, Raw: r.raw})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Result) UnmarshalJSON(bytes []byte) error {
	var stored storedResult
	if err := json.Unmarshal(bytes, &stored); err != nil {
		return err
	}
	*r = Result{Interfaces: stored.Interfaces, DNS: stored.DNS, Routes: stored.Routes, raw: stored.Raw}
	return nil
}

// outcome is a network's result.
type outcome struct {
	*types100.Result
	// Interface fields that only later versions of CNI's library have.
	details []struct{ PciID, SocketPath string }
}

// readOutcome converts a result from the agent's CNI version to that of the library.
func readOutcome(bytes []byte) (*outcome, error) {
	var later struct {
		Interfaces []struct{ PciID, SocketPath string }
	}
	result := &types100.Result{}
	for _, target := range []interface{}{result, &later} {
		if err := json.Unmarshal(bytes, target); err != nil {
			return nil, fmt.Errorf("the agent's result can't be decoded: %v: %w", err, ErrInvalidResult)
		}
	}
	if hasGaps(result) {
		return nil, fmt.Errorf("the agent's result has an entry that is null: %w", ErrInvalidResult)
	}
	result.CNIVersion = types100.ImplementedSpecVersion
	return &outcome{Result: result, details: later.Interfaces}, nil
}

// hasGaps reports whether an entry of its lists is null, which JSON allows.
func hasGaps(result *types100.Result) bool {
	for _, one := range result.Interfaces {
		if one == nil {
			return true
		}
	}
	for _, one := range result.IPs {
		if one == nil {
			return true
		}
	}
	for _, one := range result.Routes {
		if one == nil {
			return true
		}
	}
	return false
}

// resultOf combines the networks' results. The loopback has none.
func resultOf(results []*outcome, first string) (*Result, error) {
	whole := &Result{Interfaces: map[string]*Config{first: {}}}
	for _, result := range results {
		if result == nil {
			continue
		}
		if err := whole.add(result, first); err != nil {
			return nil, err
		}
	}
	return whole, nil
}

func (r *Result) add(result *outcome, first string) error {
	for number, one := range result.Interfaces {
		later := result.details[number]
		r.Interfaces[one.Name] = &Config{
			Mac: one.Mac, Sandbox: one.Sandbox, PciID: later.PciID, SocketPath: later.SocketPath,
		}
	}
	for _, ip := range result.IPs {
		name := first
		if ip.Interface != nil {
			if *ip.Interface < 0 || *ip.Interface >= len(result.Interfaces) {
				return fmt.Errorf("there is no interface %d: %w", *ip.Interface, ErrInvalidResult)
			}
			name = result.Interfaces[*ip.Interface].Name
		}
		config := r.Interfaces[name]
		config.IPConfigs = append(config.IPConfigs, &IPConfig{IP: ip.Address.IP, Gateway: ip.Gateway})
	}
	r.DNS = append(r.DNS, result.DNS)
	r.Routes = append(r.Routes, result.Routes...)
	r.raw = append(r.raw, result.Result)
	return nil
}
