package history

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

func TestNow_isTheClockOfTheMachine(t *testing.T) {
	before := Now()
	child := redistest.Child(t, "clock")
	said := child.Line("", 20*time.Second)
	theirs, err := strconv.ParseInt(said, 10, 64)
	require.NoError(t, err)
	require.Greater(t, theirs, before)
	require.Less(t, theirs, Now())
}

func TestRecord_line(t *testing.T) {
	r := &Record{keys: map[string]*keyRecord{}, asked: time.Now().Add(time.Hour)} // no offset
	for _, line := range []string{
		`+1.000000 [0 127.0.0.1:1] "EVALSHA" "0" "HSET" "k" "o" "1"`,
		`+1.000000 [0 lua] "PTTL" "k"`,
		`+1.000000 [0 lua] "HSET" "k" "a:1" "1"`,
		`+1.000001 [0 lua] "PEXPIRE" "k" "1000"`,
		`+1.100000 [0 lua] "HDEL" "k" "b:1"`,
		`+1.200000 [0 lua] "PEXPIRE" "k" "1000"`,
		`+1.200000 [0 lua] "HSET" "k" "a:1" "2"`,
		`+1.300000 [0 lua] "HDEL" "k" "a:1"`,
		`+1.300001 [0 lua] "PUBLISH" "c" "0"`,
		`+1.400000 [0 lua] "HSET" "k" "b:1" "1"`,
		`+1.400000 [0 lua] "PEXPIRE" "k" "100"`, // and it expires
		`+2.000000 [0 lua] "HSET" "k" "c:1" "1"`,
		`+2.000000 [0 lua] "PEXPIRE" "k" "100"`,
		`+2.010000 [0 lua] "DEL" "k"`,
	} {
		r.line(line + "\r\n")
	}
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	require.Equal(t, []Period{
		{"a:1", ms(1000), ms(1300)}, {"b:1", ms(1400), ms(1500)}, {"c:1", ms(2000), ms(2010)},
	}, r.Periods("k"))
	require.Nil(t, r.Periods("other"))

	for _, c := range []struct {
		from, to int64
		taken    bool
	}{{0, 900, false}, {0, 1000, true}, {1100, 1200, true}, {1310, 1390, false}, {1310, 1410, true}, {1510, 1990, false}, {2020, 9000, false}} {
		require.Equal(t, c.taken, r.Taken("k", ms(c.from), ms(c.to)), "%+v", c)
	}
	require.False(t, r.Taken("other", 0, ms(9000)))

	require.Equal(t, []Period{{"b:1", ms(1400), ms(1500)}, {"c:1", ms(2000), ms(2010)}}, r.Orphans([]Op{{Owner: "a:1"}}))

	live := []Interval{{Name: "k", Owner: "a:1", From: ms(1010), To: ms(1299)}}
	require.NoError(t, r.Covers(live))
	for _, v := range []Interval{
		{Name: "k", Owner: "a:1", From: ms(1010), To: ms(1310)},
		{Name: "k", Owner: "b:1", From: ms(1010), To: ms(1299)},
		{Name: "j", Owner: "a:1", From: ms(1010), To: ms(1299)},
	} {
		require.Error(t, r.Covers([]Interval{v}))
	}

	call := func(from, to int64) []Op { return []Op{op(1, Lock, ms(from), ms(to), Done)} }
	slow := func(from, to int64) time.Duration { return r.slow(call(from, to)) }
	require.Equal(t, 100*time.Millisecond, slow(1100, 1450), "from the release to the next grant")
	require.Equal(t, 50*time.Millisecond, slow(1350, 1450), "from the call")
	require.Equal(t, 60*time.Millisecond, slow(1100, 1360), "up to the return")
	require.Equal(t, 500*time.Millisecond, slow(900, 2005), "the longest")
	require.Equal(t, 90*time.Millisecond, slow(2005, 2100), "after the last")
	require.Equal(t, 20*time.Millisecond, slow(100, 120), "before the first")
	require.Zero(t, slow(1410, 1490))
}

func (r *Record) slow(ops []Op) time.Duration {
	for i := range ops {
		ops[i].Name = "k"
	}
	if delays := r.Delays(ops); len(delays) > 0 {
		return delays[0].For
	}
	return 0
}

// What a recorder, a record and both checks make of a real lock.
func TestRecorder_onARealServer(t *testing.T) {
	srv := redistest.Run(t)
	record, err := Watch(srv.Addr())
	require.NoError(t, err)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	hf, err := holdfast.New(client, holdfast.SessionOptions{Observer: Observer()})
	require.NoError(t, err)
	defer hf.Close(context.Background())
	lock, err := reentrant.New(hf, "n", holdfast.Options{Fencing: true})
	require.NoError(t, err)
	short, err := reentrant.New(hf, "n", holdfast.Options{Fencing: true, Fixed: true, Lease: 1200 * time.Millisecond})
	require.NoError(t, err)

	ctx := context.Background()
	rec := &Recorder{}
	c, other := rec.Client("s"), rec.Client("s")
	held, lease, err := c.Lock(ctx, lock)
	require.NoError(t, err)
	require.True(t, lease.Check())
	held, nested, err := c.TryLock(held, lock)
	require.NoError(t, err)
	_, _, err = other.TryLock(ctx, lock)
	require.ErrorIs(t, err, holdfast.ErrNotAcquired)
	require.NoError(t, c.Unlock(held, lease))
	require.NoError(t, c.Unlock(held, nested))
	held, lease, err = c.Lock(ctx, short)
	require.NoError(t, err)
	time.Sleep(1200 * time.Millisecond)
	require.False(t, lease.Check())
	require.ErrorIs(t, c.Unlock(held, lease), holdfast.ErrLost)
	held, lease, err = other.Lock(ctx, short)
	require.NoError(t, err)
	require.NoError(t, c.Force(ctx, "n", lock.ForceUnlock))
	require.ErrorIs(t, other.Unlock(held, lease), holdfast.ErrLost)
	require.NoError(t, record.Stop())

	ops := rec.Ops()
	require.Equal(t, rec.Len(), len(ops))
	var got []string
	for _, o := range ops {
		got = append(got, string(o.Verb)+" "+string(o.Outcome)+" "+strconv.Itoa(o.Count))
		require.Equal(t, "n", o.Name)
		require.LessOrEqual(t, o.Call, o.Return)
	}
	require.Equal(t, []string{
		"Lock done 1", "Nested done 2", "TryLock refused 0", "Unlock done 1", "Unlock done 0",
		"Lock done 1", "Unlock lost 0", "Lock done 1", "Force done 1", "Unlock lost 0",
	}, got)
	require.Equal(t, ops[0].Hold, ops[4].Hold)
	require.NotEqual(t, ops[0].Hold, ops[5].Hold)
	require.Greater(t, ops[5].Token, ops[0].Token)
	require.NoError(t, Check(Mutex{Taken: record.Taken}, ops, time.Minute))
	live := Live(ops)
	require.Len(t, live, 3)
	require.NoError(t, Oracle(live, 1))
	require.NoError(t, record.Covers(live[:2])) // the third was removed by force
	require.Len(t, record.Periods("n"), 3)
}
