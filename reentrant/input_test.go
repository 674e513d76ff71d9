package reentrant_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

func TestInput_badNamesAreRefusedAtTheDoor(t *testing.T) {
	srv := redistest.Run(t)
	hf := session(t, srv.Addr())
	long := strings.Repeat("x", 513)
	good := newLock(t, hf, "good")
	before := srv.Calls(t)
	for name, why := range map[string]string{
		"":       "empty",
		long:     "513 bytes, the limit is 512",
		"a{b":    "{ without a }",
		"a}b":    "} without a {",
		"a{}b":   "empty",
		"}a{b}":  "} before its first {",
		"{}":     "empty",
		"{":      "{ without a }",
		"x}y{z}": "} before its first {",
	} {
		_, err := reentrant.New(hf, name, holdfast.Options{})
		require.ErrorIs(t, err, holdfast.ErrName, "%q", name)
		require.ErrorContains(t, err, why)

		if name == "a}b" || name == "}a{b}" || name == "" || name == long || name == "{" || name == "a{b" || name == "a{}b" {
			child := good.For(name)
			_, lease, err := child.Lock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrName, "For(%q)", name)
			require.Nil(t, lease)
			_, _, err = child.TryLock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrName)
			require.ErrorIs(t, child.Do(context.Background(), nil), holdfast.ErrName)
			_, err = child.Info(context.Background())
			require.ErrorIs(t, err, holdfast.ErrName)
			_, err = child.ForceUnlock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrName)
			require.Nil(t, child.Held(context.Background()))
			_, _, err = child.For("x").Lock(context.Background())
			require.ErrorIs(t, err, holdfast.ErrName)
		}
	}
	require.Zero(t, srv.Calls(t).Since(before).Scripts())
	require.Empty(t, srv.Keys(t, "*"))
}

func TestInput_anyOtherNameWorks(t *testing.T) {
	hf := session(t, redisAddr)
	for _, name := range []string{"a\x00b", "\xff\xfe", "ü ö", "{user}:x", "a{b}{c}", " ", strings.Repeat("y", 512), "mode", "a:b:c"} {
		l := newLock(t, hf, name)
		ctx, lease := lock(t, l)
		other := newLock(t, session(t, redisAddr), name)
		_, _, err := other.TryLock(ctx)
		require.ErrorIs(t, err, holdfast.ErrNotAcquired, "%q", name)
		require.NoError(t, lease.Unlock(ctx), "%q", name)
	}
}

func TestInput_prefixCountsAndIsChecked(t *testing.T) {
	client := connect(t, redisAddr)
	hf := sessionOn(t, client, holdfast.SessionOptions{Prefix: strings.Repeat("p", 500)})
	_, err := reentrant.New(hf, strings.Repeat("n", 13), holdfast.Options{})
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = holdfast.New(client, holdfast.SessionOptions{Prefix: "a{b"})
	require.ErrorIs(t, err, holdfast.ErrOption)
}

func TestInput_badOptionsAreRefusedAtTheDoor(t *testing.T) {
	hf := session(t, redisAddr)
	for field, o := range map[string]holdfast.Options{
		"Lease is 1ns":             {Lease: 1},
		"Lease is 19.999999ms":     {Lease: 20*time.Millisecond - 1},
		"Lease is -1s":             {Lease: -time.Second},
		"Lease is 2562047h":        {Lease: math.MaxInt64},
		"Wait is":                  {Wait: math.MaxInt64},
		"MaxHold is":               {MaxHold: math.MaxInt64},
		"Grace is":                 {Grace: math.MaxInt64},
		"MinHold is":               {MinHold: math.MaxInt64},
		"TokenRetention is":        {Fencing: true, TokenRetention: math.MaxInt64},
		"TokenRetention is 1h0m0s": {TokenRetention: time.Hour},
		"at least the Lease":       {Fencing: true, TokenRetention: time.Second},
		"ReplicaTimeout is 1s":     {ReplicaTimeout: time.Second},
		"ReplicaTimeout is 1ns":    {Replicas: 1, ReplicaTimeout: 1},
	} {
		_, err := reentrant.New(hf, key(t), o)
		require.ErrorIs(t, err, holdfast.ErrOption, field)
		require.ErrorContains(t, err, field)
	}
	lease := 20*time.Millisecond + 1 // rounds up
	l := newLock(t, hf, key(t), holdfast.Options{Lease: lease})
	_, held := lock(t, l)
	_ = held.Unlock(context.Background()) // in time or not: it is short
}

func TestInput_badSessionsAreRefusedAtTheDoor(t *testing.T) {
	_, err := holdfast.New(nil, holdfast.SessionOptions{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	var none *nilClient
	_, err = holdfast.New(none, holdfast.SessionOptions{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	client := connect(t, redisAddr)
	for field, o := range map[string]holdfast.SessionOptions{
		"Timeout is -1s":       {Timeout: -time.Second},
		"Timeout is 1ns":       {Timeout: 1},
		"Timeout is 2562047h":  {Timeout: math.MaxInt64},
		"RenewBatch is -1":     {RenewBatch: -1},
		"RenewBatch is 1001":   {RenewBatch: 1001},
		"Family is 9":          {Family: 9},
		"Label":                {Label: strings.Repeat("l", 129)},
		"StallAfter is 256204": {StallAfter: math.MaxInt64},
	} {
		_, err := holdfast.New(client, o)
		require.ErrorIs(t, err, holdfast.ErrOption, field)
		require.ErrorContains(t, err, field)
	}

	_, err = reentrant.New(nil, key(t), holdfast.Options{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	hf := sessionOn(t, client)
	l := newLock(t, hf, key(t))
	_, err = hf.Bind(nil, "x", holdfast.Options{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.NoError(t, hf.Close(context.Background()))
	_, err = reentrant.New(hf, key(t), holdfast.Options{})
	require.ErrorIs(t, err, holdfast.ErrClosed)
	_, _, err = l.Lock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrClosed)
	_, _, err = l.TryLock(context.Background())
	require.ErrorIs(t, err, holdfast.ErrClosed)
}

type nilClient struct{ rueidis.Client }

func TestInput_aKeyWithOtherDataIsLeftAlone(t *testing.T) {
	hf := session(t, redisAddr)
	for kind, set := range map[string][]string{
		"string": {"SET", "", "data"},
		"list":   {"RPUSH", "", "data"},
		"zset":   {"ZADD", "", "1", "data"},
		"rwlock": {"HSET", "", "mode", "read", "someone", "1"},
	} {
		t.Run(kind, func(t *testing.T) {
			name := key(t)
			set[1] = name
			server.Do(t, set...)
			dump := server.Do(t, "DUMP", name)
			for _, o := range []holdfast.Options{{}, {Fencing: true}, {Fixed: true}} {
				l := newLock(t, hf, name, o)
				began := time.Now()
				_, lease, err := l.Lock(context.Background())
				require.ErrorIs(t, err, holdfast.ErrWrongType)
				require.ErrorContains(t, err, name)
				require.NotErrorIs(t, err, holdfast.ErrNotAcquired)
				require.Nil(t, lease)
				require.Less(t, time.Since(began), 5*time.Second, "at once")
				_, _, err = l.TryLock(context.Background())
				require.ErrorIs(t, err, holdfast.ErrWrongType)
				_, err = l.Info(context.Background())
				require.ErrorIs(t, err, holdfast.ErrWrongType)
				_, err = l.ForceUnlock(context.Background())
				require.ErrorIs(t, err, holdfast.ErrWrongType)
			}
			require.Equal(t, dump, server.Do(t, "DUMP", name))
			require.Equal(t, "0", server.Do(t, "EXISTS", "redisson_lock_token:{"+name+"}"))
		})
	}
	require.Zero(t, hf.Stats().Condemned)
}
