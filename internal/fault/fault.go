// Package fault holds the words in which every layer reports a failure.
//
// It is a leaf, so that the core, the scripts and the hub can return the same
// values that package holdfast exports. An error of the store travels as a
// [Failure], which says what is known of the command: that decides whether it
// is asked again, undone, or handed to the caller.
package fault

import "errors"

// The sentinels; package holdfast documents and exports each under the same name.
var (
	ErrNotAcquired = errors.New("not acquired")
	ErrUnavailable = errors.New("unavailable")
	ErrUnknown     = errors.New("outcome unknown")
	ErrLost        = errors.New("lost")
	ErrNotHeld     = errors.New("not held")
	ErrClosed      = errors.New("session closed")
	ErrName        = errors.New("bad name")
	ErrOption      = errors.New("bad option")
	ErrWrongType   = errors.New("key holds other data")
)

// A Reason says why a lease was lost.
type Reason string

// The reasons; package holdfast documents each under its own type.
const (
	Expired   Reason = "expired"
	Taken     Reason = "taken"
	Forced    Reason = "forced"
	MaxHold   Reason = "max hold"
	Abandoned Reason = "abandoned"
	Closed    Reason = "closed"
)

// A Class says what is known of a command that failed.
type Class uint8

const (
	// Unknown: it was sent, or may have been, and no reply came.
	Unknown Class = iota
	// NotExecuted: it changed nothing and may be sent again: the server or the
	// way to it is in trouble that usually passes.
	NotExecuted
	// Fatal: it changed nothing and sending it again would not help.
	Fatal
)

// Failure is an error of the store with what is known of the command.
type Failure struct {
	Class Class
	// Spent: the owner that asked was granted the lock and is being released, so
	// it must not ask again.
	Spent bool
	Err   error
}

// Error is the text of the error below.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap gives the error below.
func (f *Failure) Unwrap() error { return f.Err }

// ClassOf is the class of err; an error that is no Failure counts as Unknown,
// which is always safe: it costs a needless clean-up at most.
func ClassOf(err error) Class {
	var f *Failure
	if errors.As(err, &f) {
		return f.Class
	}
	return Unknown
}

// Spent reports whether err is a Failure that leaves its owner spent.
func Spent(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Spent
}
