package holdfast

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
)

// sharedKind is a kind that is not exclusive.
type sharedKind struct{}

func (sharedKind) Name() string                                     { return "shared" }
func (sharedKind) Uses() core.Uses                                  { return 0 }
func (sharedKind) Renewer(*core.Env) lease.Renewer                  { return nil }
func (sharedKind) Open(*core.Env, string, *core.Settings) core.Lock { return nil }

func TestOptions_aFieldThatAKindDoesNotUseIsRefused(t *testing.T) {
	for field, o := range map[string]Options{
		"MinHold":        {MinHold: time.Second},
		"Handoff":        {Handoff: -1},
		"Fencing":        {Fencing: true},
		"TokenRetention": {TokenRetention: time.Hour},
	} {
		_, err := o.withDefaults(sharedKind{})
		require.ErrorIs(t, err, ErrOption, field)
		require.ErrorContains(t, err, field+" is not used by shared locks")
	}
	_, err := Options{Lease: time.Second, Wait: -1, MaxHold: time.Hour, Grace: -1}.withDefaults(sharedKind{})
	require.NoError(t, err)
}

func TestOptions_defaults(t *testing.T) {
	o, err := Options{}.withDefaults(sharedKind{})
	require.NoError(t, err)
	require.Equal(t, Options{
		Lease: 30 * time.Second, Grace: time.Minute, Handoff: 64, ReplicaTimeout: time.Second, TokenRetention: 24 * time.Hour,
	}, o)
	o, err = Options{Handoff: -1, MaxHold: -1, Grace: -1, Lease: 1234567 * time.Microsecond}.withDefaults(sharedKind{})
	require.ErrorIs(t, err, ErrOption, "Handoff is set")
	require.Zero(t, o.Handoff)
	require.Zero(t, o.MaxHold)
	require.Negative(t, o.Grace)
	require.Equal(t, 1235*time.Millisecond, o.Lease, "rounded up to what Redis counts")
}

func TestLogObserver_writesEveryEvent(t *testing.T) {
	var out bytes.Buffer
	o := LogObserver(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	ctx, subject := context.Background(), Subject{Kind: "reentrant", Class: "orders", Name: "orders:4711"}
	o.Acquired(ctx, Acquired{Subject: subject, Attempts: 2, Token: 7})
	o.Refused(ctx, Refused{Subject: subject, Err: ErrNotAcquired})
	o.Retried(ctx, Retried{Subject: subject, Err: errors.New("LOADING")})
	o.Released(ctx, Released{Subject: subject})
	o.Released(ctx, Released{Subject: subject, Err: ErrUnknown})
	o.Renewed(Renewed{Kind: "reentrant", Locks: 3, Renewed: 2, Err: errors.New("NOPERM")})
	o.Lost(Lost{Subject: subject, Err: &LostError{Kind: "reentrant", Name: "orders:4711", Reason: ReasonExpired}})
	o.Stalled(Stalled{Subject: subject, For: time.Minute, Owner: "a/b:1"})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		`level=DEBUG msg="holdfast: acquired"`, `level=INFO msg="holdfast: not acquired"`, `level=INFO msg="holdfast: attempt failed"`,
		`level=DEBUG msg="holdfast: released"`, `level=INFO msg="holdfast: released"`, `level=INFO msg="holdfast: renewed"`,
		`level=WARN msg="holdfast: lost"`, `level=WARN msg="holdfast: stalled"`,
	} {
		require.Contains(t, lines[i], want)
	}
	require.Contains(t, lines[0], "class=orders")
	out.Reset()
	LogObserver(slog.New(slog.NewTextHandler(&out, nil))).Acquired(ctx, Acquired{Subject: subject})
	require.Empty(t, out.String())
}

func TestEvents_aSlowObserverLosesEventsAndNothingElse(t *testing.T) {
	s := &Session{}
	s.events.session = s
	block := make(chan struct{})
	ran := 0
	s.events.push(func() { <-block; ran++ })
	for range maxEvents + 100 {
		s.events.push(func() { ran++ })
	}
	require.GreaterOrEqual(t, s.events.dropped(), uint64(99))
	close(block)
	s.events.close(context.Background())
	require.Equal(t, uint64(ran), maxEvents+101-s.events.dropped())
	s.events.push(func() { t.Error("after close") })
}

func TestState_hasWords(t *testing.T) {
	require.Equal(t, "released held unsure lost",
		strings.Join([]string{StateReleased.String(), StateHeld.String(), StateUnsure.String(), StateLost.String()}, " "))
}
