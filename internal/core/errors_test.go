package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// script is what servers before version 7 say of an error in a script.
const script = "ERR Error running script (call to f_835d9d6fd3d935b939a0d7117deacf76e795c9ae): "

var replies = []struct {
	reply string
	class fault.Class
	is    error // in the chain
}{
	{"LOADING Redis is loading the dataset in memory", fault.NotExecuted, nil},
	{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", fault.NotExecuted, nil},
	{"READONLY You can't write against a read only replica.", fault.NotExecuted, nil},
	{"READONLY You can't write against a read only replica. script: 835d9d6f, on @user_script:19.", fault.NotExecuted, nil},
	{"OOM command not allowed when used memory > 'maxmemory'.", fault.NotExecuted, nil},
	{"OOM command not allowed when used memory > 'maxmemory'. script: 835d9d6f, on @user_script:19.", fault.NotExecuted, nil},
	{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", fault.NotExecuted, nil},
	{"CLUSTERDOWN The cluster is down", fault.NotExecuted, nil},
	{"TRYAGAIN Multiple keys request during rehashing of slot", fault.NotExecuted, nil},
	{"MOVED 3999 127.0.0.1:6381", fault.NotExecuted, nil},
	{"ASK 3999 127.0.0.1:6381", fault.NotExecuted, nil},
	{"NOREPLICAS Not enough good replicas to write.", fault.NotExecuted, nil},
	{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", fault.NotExecuted, nil},
	{"NOSCRIPT No matching script. Please use EVAL.", fault.NotExecuted, nil},
	{"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", fault.NotExecuted, nil},

	{"WRONGTYPE Operation against a key holding the wrong kind of value", fault.Fatal, fault.ErrWrongType},
	{"WRONGTYPE Operation against a key holding the wrong kind of value script: 835d9d6f, on @user_script:14.", fault.Fatal, fault.ErrWrongType},
	{"WRONGTYPE the key is a read-write lock", fault.Fatal, fault.ErrWrongType},

	{"NOPERM this user has no permissions to access one of the keys used as arguments", fault.Fatal, fault.ErrUnavailable},
	{"NOAUTH Authentication required.", fault.Fatal, fault.ErrUnavailable},
	{"WRONGPASS invalid username-password pair or user is disabled.", fault.Fatal, fault.ErrUnavailable},
	{"ERR unknown command 'EVALSHA'", fault.Fatal, fault.ErrUnavailable},
	{"ERR user_script:12: attempt to compare nil with number script: 835d9d6f, on @user_script:12.", fault.Fatal, fault.ErrUnavailable},
	{"CROSSSLOT Keys in request don't hash to the same slot", fault.Fatal, fault.ErrUnavailable},
	{"OOMPH", fault.Fatal, fault.ErrUnavailable},
	{"oom", fault.Fatal, fault.ErrUnavailable},

	{script + "@user_script:19: WRONGTYPE Operation against a key holding the wrong kind of value", fault.Fatal, fault.ErrWrongType},
	{script + "@user_script:19: @user_script: 19: -OOM command not allowed when used memory > 'maxmemory'.", fault.NotExecuted, nil},
	{script + "@user_script:19: @user_script: 19: -READONLY You can't write against a read only replica.", fault.NotExecuted, nil},
	{script + "@user_script:19: @user_script: 19: -NOREPLICAS Not enough good replicas to write.", fault.NotExecuted, nil},
	{script + "@user_script:19: @user_script: 19: -MISCONF Errors writing to the AOF file", fault.NotExecuted, nil},
	{script + "@user_script:19: NOPERM this user has no permissions to run the 'hset' command", fault.Fatal, fault.ErrUnavailable},
	{script + "@user_script:19: attempt to compare nil with number", fault.Fatal, fault.ErrUnavailable},
}

// The replies come through a connection, since the client changes some.
func TestFail_classOfEachReply(t *testing.T) {
	s := redistest.Run(t)
	p := redistest.NewProxy(t, s.Addr())
	client := s.Client(t, func(o *rueidis.ClientOption) { o.InitAddress = []string{p.Addr()} })
	for i, c := range replies {
		t.Run(c.reply, func(t *testing.T) {
			p.Answer(fmt.Sprint("GET key", i), "-"+c.reply+"\r\n", 1)
			replied := client.Do(t.Context(), client.B().Arbitrary("GET", fmt.Sprint("key", i)).Build()).Error()
			require.Error(t, replied)
			err := core.Fail(replied)
			require.Equal(t, c.class, fault.ClassOf(err), err)
			require.ErrorIs(t, err, replied, "the error of Redis stays in the chain")
			require.ErrorContains(t, err, strings.TrimPrefix(c.reply, "ERR "))
			for _, sentinel := range []error{fault.ErrWrongType, fault.ErrUnavailable} {
				require.Equal(t, errors.Is(c.is, sentinel), errors.Is(err, sentinel), sentinel)
			}
			require.Same(t, err, core.Fail(err), "a failure stays what it is")
		})
	}
}

func TestFail_ofARealScript(t *testing.T) {
	s := redistest.Run(t)
	client := s.Client(t)
	eval := func(c rueidis.Client, body string) error {
		return core.Fail(c.Do(t.Context(), c.B().Eval().Script(body).Numkeys(1).Key("key").Build()).Error())
	}
	s.Do(t, "SET", "key", "text")
	err := eval(client, "return redis.call('HSET', KEYS[1], 'a', 1)")
	require.ErrorIs(t, err, fault.ErrWrongType)
	require.Equal(t, fault.Fatal, fault.ClassOf(err))

	s.Do(t, "CONFIG", "SET", "maxmemory", "1")
	err = eval(client, "return redis.call('SET', KEYS[1], 'a')")
	require.Equal(t, fault.NotExecuted, fault.ClassOf(err), err)
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")

	s.Do(t, "ACL", "SETUSER", "reader", "on", ">word", "~key", "+@all", "-set", "-acl")
	reader := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "reader", "word" })
	err = eval(reader, "return redis.call('SET', KEYS[1], 'a')")
	require.ErrorIs(t, err, fault.ErrUnavailable)
	require.Equal(t, fault.Fatal, fault.ClassOf(err))

	s.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	err = eval(client, "return redis.call('SET', KEYS[1], 'a')")
	require.Equal(t, fault.NotExecuted, fault.ClassOf(err), err)
	s.Do(t, "CONFIG", "SET", "min-replicas-to-write", "0")

	s.Do(t, "REPLICAOF", "127.0.0.1", "1")
	err = eval(client, "return redis.call('SET', KEYS[1], 'a')")
	require.Equal(t, fault.NotExecuted, fault.ClassOf(err), err)
}

func TestFail_ofNothingIsNothing(t *testing.T) { require.NoError(t, core.Fail(nil)) }

func dialError(t *testing.T, ctx context.Context, d net.Dialer) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = d.DialContext(ctx, "tcp", l.Addr().String())
	require.Error(t, err)
	return err
}

func TestFail_classOfEachTrouble(t *testing.T) {
	past, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name  string
		err   error
		class fault.Class
		is    error
	}{
		{"refused", dialError(t, t.Context(), net.Dialer{}), fault.NotExecuted, syscall.ECONNREFUSED},
		{"dial timed out", dialError(t, t.Context(), net.Dialer{Timeout: time.Nanosecond}), fault.NotExecuted, nil},
		{"dial with a context that was over", dialError(t, past, net.Dialer{}), fault.NotExecuted, nil},
		{"dial with a context that was cancelled", dialError(t, cancelled, net.Dialer{}), fault.NotExecuted, nil},
		{"dial with a bare context error", &net.OpError{Op: "dial", Net: "tcp", Err: context.Canceled}, fault.NotExecuted, nil},
		{"wrapped dial with a context that was over", fmt.Errorf("client: %w", dialError(t, past, net.Dialer{})), fault.NotExecuted, nil},
		{"wrapped dial with a context that was cancelled", fmt.Errorf("client: %w", dialError(t, cancelled, net.Dialer{})), fault.NotExecuted, nil},
		{"wrapped", fmt.Errorf("client: %w", dialError(t, t.Context(), net.Dialer{})), fault.NotExecuted, syscall.ECONNREFUSED},
		{"no such host", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, fault.NotExecuted, nil},
		{"end", io.EOF, fault.Unknown, io.EOF},
		{"reset", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, fault.Unknown, syscall.ECONNRESET},
		{"broken pipe", &net.OpError{Op: "write", Err: syscall.EPIPE}, fault.Unknown, syscall.EPIPE},
		{"read timed out", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, fault.Unknown, nil},
		{"closing", rueidis.ErrClosing, fault.Unknown, rueidis.ErrClosing},
		{"deadline", context.DeadlineExceeded, fault.Unknown, nil},
		{"cancelled", context.Canceled, fault.Unknown, nil},
		{"wrapped deadline", fmt.Errorf("client: %w", context.DeadlineExceeded), fault.Unknown, nil},
		{"wrapped cancellation", fmt.Errorf("client: %w", context.Canceled), fault.Unknown, nil},
		{"nothing", rueidis.Nil, fault.Unknown, rueidis.Nil},
		{"other", errors.New("other"), fault.Unknown, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := core.Fail(c.err)
			require.Error(t, err)
			require.Equal(t, c.class, fault.ClassOf(err))
			require.NotEmpty(t, err.Error())
			if c.class == fault.NotExecuted {
				require.Equal(t, c.err.Error(), err.Error(), "where to it dialed stays")
			}
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.NotErrorIs(t, err, fault.ErrUnavailable)
			// The bound was ours: whoever asks whether their own context ended
			// must not be told so.
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, context.Canceled)
		})
	}
}

// What the client itself answers while a server is silent, dies and is gone.
func TestFail_ofAServerThatGoes(t *testing.T) {
	s := redistest.Run(t)
	client := s.Client(t)
	ask := func(ctx context.Context) error {
		return core.Fail(client.Do(ctx, client.B().Arbitrary("INCR", "key").Build()).Error())
	}
	require.NoError(t, ask(t.Context()))

	s.Pause()
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := ask(bounded)
	require.Equal(t, fault.Unknown, fault.ClassOf(err))
	require.NotErrorIs(t, err, context.DeadlineExceeded)

	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	err = ask(cancelled)
	require.Equal(t, fault.Unknown, fault.ClassOf(err))
	require.NotErrorIs(t, err, context.Canceled)

	lost := make(chan error, 1)
	go func() { lost <- ask(t.Context()) }()
	s.Kill()
	err = <-lost
	if fault.ClassOf(err) != fault.NotExecuted { // it may have been too late to be sent
		require.Equal(t, fault.Unknown, fault.ClassOf(err), err)
	}

	redistest.Eventually(t, patience, "the server is gone", func() bool {
		return fault.ClassOf(ask(t.Context())) == fault.NotExecuted
	})
}
