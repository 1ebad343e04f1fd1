package cni

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of errors. A refusal by the agent is a *types.Error of CNI's library, with its code.
var (
	ErrCNINotInitialized = errors.New("cni plugin not initialized")
	ErrInvalidConfig     = errors.New("invalid cni config")
	ErrNotFound          = errors.New("not found")
	ErrRead              = errors.New("failed to read config file")
	ErrInvalidResult     = errors.New("invalid result")
	ErrLoad              = errors.New("failed to load cni config")
)

// IsCNINotInitialized reports whether fewer networks are loaded than required.
func IsCNINotInitialized(err error) bool {
	return errors.Is(err, ErrCNINotInitialized)
}

// IsInvalidConfig reports whether a configuration is malformed, or belongs to another plugin.
func IsInvalidConfig(err error) bool {
	return errors.Is(err, ErrInvalidConfig)
}

// IsNotFound reports whether something is missing.
func IsNotFound(err error) bool {
	return errors.Is(err, ErrNotFound)
}

// IsReadFailure reports whether a file could not be read.
func IsReadFailure(err error) bool {
	return errors.Is(err, ErrRead)
}

// IsInvalidResult reports whether the agent's result is malformed.
func IsInvalidResult(err error) bool {
	return errors.Is(err, ErrInvalidResult)
}

func invalid(format string, arguments ...interface{}) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, arguments...), ErrInvalidConfig)
}

// joined combines several errors. The module's Go version has no errors.Join.
type joined []error

func (j joined) orNil() error {
	switch len(j) {
	case 0:
		return nil
	case 1:
		return j[0]
	}
	return j
}

func (j joined) Error() string {
	texts := make([]string, len(j))
	for number, err := range j {
		texts[number] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Is makes errors.Is examine each error.
func (j joined) Is(target error) bool {
	for _, err := range j {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// As makes errors.As examine each error.
func (j joined) As(target interface{}) bool {
	for _, err := range j {
		if errors.As(err, target) {
			return true
		}
	}
	return false
}
