package core

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// Fail says what an error of the client means for the command that met it. nil
// stays nil.
func Fail(err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Failure
	if errors.As(err, &f) {
		return err
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		return failReply(e.Error(), err)
	}
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			err = errors.New(err.Error()) // as below
		}
		return &fault.Failure{Class: fault.NotExecuted, Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// It was our bound and not the caller's context: the caller shall not take
		// one for the other.
		return &fault.Failure{Class: fault.Unknown, Err: errNoReply}
	default:
		return &fault.Failure{Class: fault.Unknown, Err: err}
	}
}

var errNoReply = errors.New("no reply from Redis in time")

// passing are the first words of replies that say: not now. Nothing was changed.
var passing = map[string]bool{
	"LOADING":     true, // the server reads its data
	"BUSY":        true, // a script of somebody else runs for too long
	"READONLY":    true, // a replica, or a primary that was demoted
	"MASTERDOWN":  true,
	"CLUSTERDOWN": true,
	"TRYAGAIN":    true, // the slot is moving and not all keys are on one side
	"MOVED":       true,
	"ASK":         true,
	"NOREPLICAS":  true,
	"MISCONF":     true, // the server cannot save
	"OOM":         true,
	"NOSCRIPT":    true,
	"UNBLOCKED":   true,
}

// wordOf is the word that says what kind of error a reply is.
func wordOf(text string) string {
	word, _, _ := strings.Cut(text, " ")
	if strings.Contains(text, "user_script") && (word == "ERR" || word == "Error") {
		// Before version 7 Redis wraps the error of a command in a script; the client
		// may have taken ERR off.
		for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ':' || r == '-' }) {
			if passing[w] || w == "WRONGTYPE" || w == "NOPERM" {
				return w
			}
		}
	}
	return word
}

// failReply classes an error reply by its text.
func failReply(text string, err error) error {
	word := wordOf(text)
	switch {
	case passing[word]:
		return &fault.Failure{Class: fault.NotExecuted, Err: err}
	case word == "WRONGTYPE":
		return &fault.Failure{Class: fault.Fatal, Err: fmt.Errorf("%w: %w", fault.ErrWrongType, err)}
	case word == "NOPERM", word == "NOAUTH", word == "WRONGPASS":
		return &fault.Failure{Class: fault.Fatal, Err: fmt.Errorf("%w: %w (docs/ARCHITECTURE.md lists what a lock user must be allowed)", fault.ErrUnavailable, err)}
	default:
		return &fault.Failure{Class: fault.Fatal, Err: fmt.Errorf("%w: %w", fault.ErrUnavailable, err)}
	}
}

func isWrongType(err error) bool { return errors.Is(err, fault.ErrWrongType) }

// refused reports whether the server would not run a script for what it was to
// touch, rather than for the state of the server.
func refused(err error) bool {
	e, ok := redisReply(err)
	if !ok {
		return false
	}
	word := wordOf(e.Error())
	return word == "TRYAGAIN" || word == "MOVED" || word == "ASK" || !passing[word]
}

// Moving reports whether the server refused a script because its keys lie on two
// nodes, or may do so, while their slot moves.
func Moving(err error) bool {
	e, ok := redisReply(err)
	return ok && wordOf(e.Error()) == "TRYAGAIN"
}

func redisReply(err error) (*rueidis.RedisError, bool) {
	var e *rueidis.RedisError
	ok := errors.As(err, &e)
	return e, ok
}
