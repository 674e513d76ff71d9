package holdfast

import (
	"context"
	"log/slog"
	"time"
)

// An Observer is told what a session does; nil fields are left out. It is a
// struct so that it can grow without breaking anyone.
//
// Acquired, Refused, Retried and Released run on the goroutine of the caller
// with its context, outside every mutex, so that traces and metrics can join
// them; keep them short. Renewed, Lost and Stalled run one after the other on a
// goroutine of the session, from a queue of 1024: a slow observer loses events
// (counted in [Stats.Dropped]), never a renewal. A panic in any of them is
// recovered.
type Observer struct {
	// Acquired is called when a lock is taken, nested holds included.
	Acquired func(ctx context.Context, e Acquired)
	// Refused is called when Lock, TryLock or Do returns without the lock.
	Refused func(ctx context.Context, e Refused)
	// Retried is called when Lock goes on after a failure that usually passes.
	Retried func(ctx context.Context, e Retried)
	// Released is called when Unlock returns.
	Released func(ctx context.Context, e Released)
	// Renewed is called for every renewal script.
	Renewed func(e Renewed)
	// Lost is called when a lease is lost.
	Lost func(e Lost)
	// Stalled is called when a lock was waited for or held longer than
	// [SessionOptions.StallAfter], or is held on after its context ended.
	Stalled func(e Stalled)
}

// Subject says which lock an event is about.
type Subject struct {
	// Kind is the lock kind, such as "reentrant".
	Kind string
	// Class is the label for metrics: [Options.Class].
	Class string
	// Name is the lock's full name. It may be an id: keep it out of metrics.
	Name string
}

// Acquired tells of a lock that was taken.
type Acquired struct {
	Subject
	// Waited is the time from the call to the grant.
	Waited time.Duration
	// Attempts is how often Redis was asked for this hold: 0 for a local handoff,
	// more than 1 if the lock was contended.
	Attempts int
	// Handoff tells that the lock came from another goroutine of this process.
	Handoff bool
	// Holds is the number of holds of the owner, this one included; more than 1 is
	// a nested hold.
	Holds int
	// Token is the fencing token, 0 without Fencing.
	Token uint64
}

// Refused tells of a call that returned without the lock.
type Refused struct {
	Subject
	// Waited is the time from the call to its end.
	Waited time.Duration
	// Attempts is how often Redis was asked.
	Attempts int
	// Err is what the call returned.
	Err error
}

// Retried tells of a failure that a waiting call rides out.
type Retried struct {
	Subject
	// Attempts is how often Redis was asked so far.
	Attempts int
	// Err is the failure.
	Err error
}

// Released tells of an Unlock.
type Released struct {
	Subject
	// Held is the time from the grant to the Unlock.
	Held time.Duration
	// Holds is the number of holds left to the owner.
	Holds int
	// Err is what Unlock returned: nil, ErrUnknown, ErrLost.
	Err error
}

// Renewed tells of one renewal script.
type Renewed struct {
	// Kind is the lock kind.
	Kind string
	// Locks is how many locks it was to renew, Renewed how many it did renew.
	Locks, Renewed int
	// Took is the time it took.
	Took time.Duration
	// Err is the first failure in it.
	Err error
}

// Lost tells of a lease that was lost.
type Lost struct {
	Subject
	// Held is the time from the grant to the loss.
	Held time.Duration
	// Err says why.
	Err *LostError
}

// Stalled tells of a lock that may be stuck.
type Stalled struct {
	Subject
	// Waiting is the number of callers of this process that wait for the lock.
	Waiting int
	// For is how long it has been waited for or held.
	For time.Duration
	// ContextEnded tells that the caller's context has ended and the lock is still
	// held.
	ContextEnded bool
	// Owner is the owner field of the hold if this session has it, else empty.
	Owner string
}

// LogObserver returns an observer that writes every event to logger: losses and
// stalls at level Warn, failures at Info, the rest at Debug. The session logs
// losses and stalls itself, so use this one to see everything.
func LogObserver(logger *slog.Logger) Observer {
	at := func(ctx context.Context, level slog.Level, text string, s Subject, attrs ...slog.Attr) {
		if !logger.Enabled(ctx, level) {
			return
		}
		attrs = append([]slog.Attr{
			slog.String("kind", s.Kind), slog.String("class", s.Class), slog.String("name", s.Name),
		}, attrs...)
		logger.LogAttrs(ctx, level, "holdfast: "+text, attrs...)
	}
	return Observer{
		Acquired: func(ctx context.Context, e Acquired) {
			at(ctx, slog.LevelDebug, "acquired", e.Subject,
				slog.Duration("waited", e.Waited), slog.Int("attempts", e.Attempts), slog.Bool("handoff", e.Handoff),
				slog.Int("holds", e.Holds), slog.Uint64("token", e.Token))
		},
		Refused: func(ctx context.Context, e Refused) {
			at(ctx, slog.LevelInfo, "not acquired", e.Subject,
				slog.Duration("waited", e.Waited), slog.Int("attempts", e.Attempts), slog.Any("error", e.Err))
		},
		Retried: func(ctx context.Context, e Retried) {
			at(ctx, slog.LevelInfo, "attempt failed", e.Subject, slog.Int("attempts", e.Attempts), slog.Any("error", e.Err))
		},
		Released: func(ctx context.Context, e Released) {
			level := slog.LevelDebug
			if e.Err != nil {
				level = slog.LevelInfo
			}
			at(ctx, level, "released", e.Subject, slog.Duration("held", e.Held), slog.Int("holds", e.Holds), slog.Any("error", e.Err))
		},
		Renewed: func(e Renewed) {
			level := slog.LevelDebug
			if e.Err != nil {
				level = slog.LevelInfo
			}
			logger.LogAttrs(context.Background(), level, "holdfast: renewed", slog.String("kind", e.Kind),
				slog.Int("locks", e.Locks), slog.Int("renewed", e.Renewed), slog.Duration("took", e.Took), slog.Any("error", e.Err))
		},
		Lost: func(e Lost) {
			at(context.Background(), slog.LevelWarn, "lost", e.Subject, slog.Duration("held", e.Held), slog.Any("error", e.Err))
		},
		Stalled: func(e Stalled) {
			at(context.Background(), slog.LevelWarn, "stalled", e.Subject, slog.Duration("for", e.For),
				slog.Int("waiting", e.Waiting), slog.Bool("context_ended", e.ContextEnded), slog.String("owner", e.Owner))
		},
	}
}
