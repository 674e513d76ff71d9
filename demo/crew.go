package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

// A crew looks after the processes of one sale. It is what redistest, which is
// made for tests, has in place of a test.
type crew struct {
	ctx   context.Context // of the sale
	errs  io.Writer
	tasks []func()
}

var _ redistest.TB = (*crew)(nil)

// failure is how Fatalf leaves; finish turns it into an error.
type failure struct{ error }

// Fatalf ends the sale.
func (c *crew) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Logf passes on what a process says on stderr. After Ctrl-C, which ends the
// server too, that would only be complaints.
func (c *crew) Logf(format string, args ...any) {
	if c.ctx.Err() == nil {
		printf(c.errs, format+"\n", args...)
	}
}

// Cleanup keeps a task for the end of the sale.
func (c *crew) Cleanup(task func()) { c.tasks = append(c.tasks, task) }

// Helper is of no use here.
func (c *crew) Helper() {}

// Name names the crew.
func (c *crew) Name() string { return "demo" }

// TempDir is not needed by any process of a sale.
func (c *crew) TempDir() string { panic(failure{errors.New("no temporary directory")}) }

// finish is to be deferred: it ends all processes and turns a failure into err.
func (c *crew) finish(err *error) {
	caught := recover()
	for _, task := range c.tasks {
		task()
	}
	switch f, ok := caught.(failure); {
	case ok:
		*err = f.error
	case caught != nil:
		panic(caught)
	}
}
