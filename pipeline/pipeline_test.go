package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/pipeline"
)

// trail is a stage value that records the behaviors.
type trail struct{ seen []string }

// noting returns a behavior that records its name before and after next.
func noting(name string) pipeline.Behavior[*trail] {
	return func(next pipeline.Func[*trail]) pipeline.Func[*trail] {
		return func(ctx context.Context, in *trail) error {
			in.seen = append(in.seen, name)
			err := next(ctx, in)
			in.seen = append(in.seen, "/"+name)
			return err
		}
	}
}

func end(_ context.Context, in *trail) error {
	in.seen = append(in.seen, "end")
	return nil
}

// run composes the stage and returns the order in which its steps began and returned.
func run(t *testing.T, s *pipeline.Stage[*trail]) []string {
	t.Helper()
	f, err := s.Then(end)
	if err != nil {
		t.Fatal(err)
	}
	var in trail
	if err := f(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	return in.seen
}

func stageOf(names ...string) pipeline.Stage[*trail] {
	var s pipeline.Stage[*trail]
	for _, name := range names {
		s.Use(name, noting(name))
	}
	return s
}

func TestZeroStageRunsItsEndAlone(t *testing.T) {
	var s pipeline.Stage[*trail]
	if names := s.Names(); len(names) != 0 {
		t.Errorf("names %q, want none", names)
	}
	if diff := cmp.Diff([]string{"end"}, run(t, &s)); diff != "" {
		t.Error(diff)
	}
}

func TestFirstBehaviorIsOutermost(t *testing.T) {
	s := stageOf("a", "b", "c")
	want := []string{"a", "b", "c", "end", "/c", "/b", "/a"}
	if diff := cmp.Diff(want, run(t, &s)); diff != "" {
		t.Error(diff)
	}
}

func TestChangesKeepTheOrderTheySay(t *testing.T) {
	tests := []struct {
		name   string
		change func(*pipeline.Stage[*trail])
		want   string // names, outermost first
	}{
		{"Use puts last", func(s *pipeline.Stage[*trail]) { s.Use("x", noting("x")) }, "a b c x"},
		{"Before the first", func(s *pipeline.Stage[*trail]) { s.Before("a", "x", noting("x")) }, "x a b c"},
		{"Before another", func(s *pipeline.Stage[*trail]) { s.Before("c", "x", noting("x")) }, "a b x c"},
		{"After the last", func(s *pipeline.Stage[*trail]) { s.After("c", "x", noting("x")) }, "a b c x"},
		{"After another", func(s *pipeline.Stage[*trail]) { s.After("a", "x", noting("x")) }, "a x b c"},
		{"the later of two After is nearer", func(s *pipeline.Stage[*trail]) {
			s.After("a", "x", noting("x"))
			s.After("a", "y", noting("y"))
		}, "a y x b c"},
		{"Remove the first", func(s *pipeline.Stage[*trail]) { s.Remove("a") }, "b c"},
		{"Remove the last", func(s *pipeline.Stage[*trail]) { s.Remove("c") }, "a b"},
		{"Remove all", func(s *pipeline.Stage[*trail]) { s.Remove("b"); s.Remove("a"); s.Remove("c") }, ""},
		{"Remove, then Use again", func(s *pipeline.Stage[*trail]) { s.Remove("a"); s.Use("a", noting("a")) }, "b c a"},
		{"Replace keeps place and name", func(s *pipeline.Stage[*trail]) { s.Replace("b", noting("b")) }, "a b c"},
		{"names differ by case", func(s *pipeline.Stage[*trail]) { s.Use("A", noting("A")) }, "a b c A"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := stageOf("a", "b", "c")
			test.change(&s)
			want := strings.Fields(test.want)
			if diff := cmp.Diff(want, s.Names()); diff != "" && len(want)+len(s.Names()) > 0 {
				t.Error("names:", diff)
			}
			seen := run(t, &s)
			if diff := cmp.Diff(append(want, "end"), seen[:len(want)+1]); diff != "" {
				t.Error("order of the run:", diff)
			}
		})
	}
}

func TestReplaceRunsTheNewBehaviorInTheOldPlace(t *testing.T) {
	s := stageOf("a", "b", "c")
	s.Replace("b", noting("new"))
	want := []string{"a", "new", "c", "end", "/c", "/new", "/a"}
	if diff := cmp.Diff(want, run(t, &s)); diff != "" {
		t.Error(diff)
	}
}

func TestNamesAreTheCallers(t *testing.T) {
	s := stageOf("a", "b")
	s.Names()[0] = "changed"
	if diff := cmp.Diff([]string{"a", "b"}, s.Names()); diff != "" {
		t.Error(diff)
	}
}

func TestCopiesOfAStageShareNothing(t *testing.T) {
	changes := map[string]func(*pipeline.Stage[*trail]){
		"Use":     func(s *pipeline.Stage[*trail]) { s.Use("x", noting("x")) },
		"Before":  func(s *pipeline.Stage[*trail]) { s.Before("a", "x", noting("x")) },
		"After":   func(s *pipeline.Stage[*trail]) { s.After("a", "x", noting("x")) },
		"Replace": func(s *pipeline.Stage[*trail]) { s.Replace("b", noting("x")) },
		"Remove":  func(s *pipeline.Stage[*trail]) { s.Remove("a") },
		"a mistake": func(s *pipeline.Stage[*trail]) {
			s.Use("", noting("x"))
			s.Remove("x")
		},
	}
	want := []string{"a", "b", "c", "end", "/c", "/b", "/a"}
	for name, change := range changes {
		t.Run(name+" on the copy", func(t *testing.T) {
			original := stageOf("a", "b", "c")
			changed := original
			change(&changed)
			if diff := cmp.Diff(want, run(t, &original)); diff != "" {
				t.Error(diff)
			}
		})
		t.Run(name+" on the original", func(t *testing.T) {
			original := stageOf("a", "b", "c")
			kept := original
			change(&original)
			if diff := cmp.Diff(want, run(t, &kept)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTwoCopiesMayBothGrow(t *testing.T) {
	base := stageOf("a", "b", "c")
	left, right := base, base
	left.Use("left", noting("left"))
	right.Use("right", noting("right"))
	if got := left.Names(); got[3] != "left" {
		t.Errorf("the left copy has %q", got)
	}
	if got := right.Names(); got[3] != "right" {
		t.Errorf("the right copy has %q", got)
	}
}

func TestTwoCopiesMakeTheirOwnMistakes(t *testing.T) {
	for earlier := range 8 { // slices have room to spare after some of them
		var base pipeline.Stage[*trail]
		for range earlier {
			base.Use("", noting("a"))
		}
		left, right := base, base
		left.Use("left", nil)
		right.Use("right", nil)
		for name, s := range map[string]*pipeline.Stage[*trail]{"left": &left, "right": &right} {
			_, err := s.Then(end)
			if want := fmt.Sprintf("behavior %q is nil", name); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("after %d mistakes: %v, want %s last", earlier, err, want)
			}
		}
	}
}

func TestAComposedFuncDoesNotFollowLaterChanges(t *testing.T) {
	s := stageOf("a")
	f, err := s.Then(end)
	if err != nil {
		t.Fatal(err)
	}
	s.Replace("a", noting("other"))
	s.Use("b", noting("b"))
	var in trail
	if err := f(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "end", "/a"}, in.seen); diff != "" {
		t.Error(diff)
	}
}

func TestBehaviorsAreCalledOncePerComposition(t *testing.T) {
	composed, calls := 0, 0
	var s pipeline.Stage[*trail]
	s.Use("counting", func(next pipeline.Func[*trail]) pipeline.Func[*trail] {
		composed++
		return func(ctx context.Context, in *trail) error { calls++; return next(ctx, in) }
	})
	if composed != 0 {
		t.Error("the behavior was called before Then")
	}
	f, err := s.Then(end)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := f(t.Context(), &trail{}); err != nil {
			t.Fatal(err)
		}
	}
	if composed != 1 || calls != 3 {
		t.Errorf("composed %d times and called %d times, want 1 and 3", composed, calls)
	}
}

func TestABehaviorMayEndTheStageEarly(t *testing.T) {
	s := stageOf("a", "stop", "b")
	s.Replace("stop", func(pipeline.Func[*trail]) pipeline.Func[*trail] {
		return func(context.Context, *trail) error { return nil }
	})
	if diff := cmp.Diff([]string{"a", "/a"}, run(t, &s)); diff != "" {
		t.Error(diff)
	}
}

func TestABehaviorMayCallNextAgain(t *testing.T) {
	var s pipeline.Stage[*trail]
	s.Use("twice", func(next pipeline.Func[*trail]) pipeline.Func[*trail] {
		return func(ctx context.Context, in *trail) error { return errors.Join(next(ctx, in), next(ctx, in)) }
	})
	s.Use("a", noting("a"))
	if diff := cmp.Diff([]string{"a", "end", "/a", "a", "end", "/a"}, run(t, &s)); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsAndContextsPassThroughUnchanged(t *testing.T) {
	type key struct{}
	broken := errors.New("broken")
	var s pipeline.Stage[*trail]
	s.Use("value", func(next pipeline.Func[*trail]) pipeline.Func[*trail] {
		return func(ctx context.Context, in *trail) error {
			return next(context.WithValue(ctx, key{}, "set"), in)
		}
	})
	s.Use("a", noting("a"))
	f, err := s.Then(func(ctx context.Context, _ *trail) error {
		if got := ctx.Value(key{}); got != "set" {
			t.Errorf("the end sees the value %v, want the behavior's", got)
		}
		return broken
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f(t.Context(), &trail{}); err != broken { //nolint:errorlint // the very same error
		t.Errorf("got %v, want the error of the end as it is", err)
	}
}

func TestMistakesComeOutOfThenAndSayWhatToDo(t *testing.T) {
	none := func(pipeline.Func[*trail]) pipeline.Func[*trail] { return nil }
	tests := []struct {
		name    string
		mistake func(*pipeline.Stage[*trail])
		want    string
	}{
		{
			"a name twice", func(s *pipeline.Stage[*trail]) { s.Use("a", noting("a")) },
			`behavior "a" is there already: use Replace, or another name`,
		},
		{
			"a name twice by Before", func(s *pipeline.Stage[*trail]) { s.Before("b", "a", noting("a")) },
			`behavior "a" is there already: use Replace, or another name`,
		},
		{
			"no name", func(s *pipeline.Stage[*trail]) { s.Use("", noting("a")) },
			`a behavior has no name`,
		},
		{
			"Use of nil", func(s *pipeline.Stage[*trail]) { s.Use("x", nil) },
			`behavior "x" is nil`,
		},
		{
			"Replace by nil", func(s *pipeline.Stage[*trail]) { s.Replace("a", nil) },
			`behavior "a" is nil`,
		},
		{
			"Before something unknown", func(s *pipeline.Stage[*trail]) { s.Before("x", "new", noting("new")) },
			`there is no behavior "x" to put "new" before: there are ["a" "b"]`,
		},
		{
			"After something unknown", func(s *pipeline.Stage[*trail]) { s.After("x", "new", noting("new")) },
			`there is no behavior "x" to put "new" after: there are ["a" "b"]`,
		},
		{
			"Replace of something unknown", func(s *pipeline.Stage[*trail]) { s.Replace("x", noting("x")) },
			`there is no behavior "x" to replace: there are ["a" "b"]`,
		},
		{
			"Remove of something unknown", func(s *pipeline.Stage[*trail]) { s.Remove("x") },
			`there is no behavior "x" to remove: there are ["a" "b"]`,
		},
		{
			"a behavior that returns nil", func(s *pipeline.Stage[*trail]) { s.Use("x", none) },
			`behavior "x" returned no function`,
		},
		{
			"several at once, in order", func(s *pipeline.Stage[*trail]) {
				s.Remove("x")
				s.Use("a", nil)
				s.Before("a", "none", none)
			},
			`there is no behavior "x" to remove: there are ["a" "b"]` + "\n" +
				`behavior "a" is nil` + "\n" +
				`behavior "none" returned no function`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := stageOf("a", "b")
			test.mistake(&s)
			f, err := s.Then(end)
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if f != nil {
				t.Error("Then returned a function together with an error")
			}
			if names := s.Names(); !slices.Contains(names, "a") || !slices.Contains(names, "b") {
				t.Errorf("the mistake took away what was there: %q is left", names)
			}
		})
	}
}

func TestThenNeedsAnEnd(t *testing.T) {
	s := stageOf("a")
	s.Remove("x")
	f, err := s.Then(nil)
	want := `there is no behavior "x" to remove: there are ["a"]` + "\nnil is no end of a stage"
	if f != nil || err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	var zero pipeline.Stage[*trail]
	if _, err := zero.Then(nil); err == nil {
		t.Error("an empty stage took nil for its end")
	}
}

// counter is a stage value that costs its behaviors nothing.
type counter struct{ n int }

func passThrough(next pipeline.Func[*counter]) pipeline.Func[*counter] {
	return func(ctx context.Context, in *counter) error { return next(ctx, in) }
}

func counting(tb testing.TB, behaviors int) pipeline.Func[*counter] {
	tb.Helper()
	var s pipeline.Stage[*counter]
	for i := range behaviors {
		s.Use(string(rune('a'+i)), passThrough)
	}
	f, err := s.Then(func(_ context.Context, in *counter) error { in.n++; return nil })
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestBehaviorsAllocateNothing(t *testing.T) {
	f, ctx, in := counting(t, 10), t.Context(), new(counter)
	allocs := testing.AllocsPerRun(100, func() {
		if err := f(ctx, in); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message, want 0", allocs)
	}
	if in.n != 101 { // one to warm up
		t.Errorf("the end ran %d times, want 101", in.n)
	}
}

// Ten behaviors may cost 100 ns more than none, and no allocation.
func BenchmarkStage(b *testing.B) {
	for _, behaviors := range []int{0, 10} {
		b.Run(fmt.Sprintf("behaviors=%d", behaviors), func(b *testing.B) {
			f, ctx, in := counting(b, behaviors), b.Context(), new(counter)
			b.ReportAllocs()
			for b.Loop() {
				if err := f(ctx, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
