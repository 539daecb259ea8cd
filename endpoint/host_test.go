package endpoint

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestTheIDOfAHostIsDerivedFromTheNameThatIsShown(t *testing.T) {
	of := func(name string, h Host) Host {
		e, err := New(Config{Name: name, Transport: &inmemory.Transport{}, Host: h})
		if err != nil {
			t.Fatal(err)
		}
		return e.Host()
	}
	byDefault := of("sales", Host{})
	if byDefault != of("sales", Host{}) || byDefault.Name != machineName() || len(byDefault.ID) != 32 {
		t.Errorf("the default is %+v, then %+v", byDefault, of("sales", Host{}))
	}
	if of("billing", Host{}).ID == byDefault.ID || of("sales", Host{Name: "elsewhere"}).ID == byDefault.ID {
		t.Error("hosts share an id")
	}
	want := Host{ID: "0199a2f06f2b7cc1a4c54f1fd0c4c9a1", Name: "rack 7"}
	if got := of("sales", Host{ID: "0199A2F0-6F2B-7CC1-A4C5-4F1FD0C4C9A1", Name: "rack 7"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAHostThatServicePulseCannotShowIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		host Host
		want string
	}{
		"no UUID":     {Host{ID: "rack-7", Name: "rack 7"}, "no UUID"},
		"zeros":       {Host{ID: "00000000-0000-0000-0000-000000000000", Name: "rack 7"}, "no UUID"},
		"no name":     {Host{ID: "0199a2f06f2b7cc1a4c54f1fd0c4c9a1"}, "Host.Name is not"},
		"two lines":   {Host{Name: "rack\n7"}, "cannot be shown"},
		"blank":       {Host{Name: " "}, "cannot be shown"},
		"no text":     {Host{Name: "rack \xff"}, "cannot be shown"},
		"a long name": {Host{Name: strings.Repeat("7", 201)}, "cannot be shown"},
		"too long":    {Host{ID: "0199a2f06f2b7cc1a4c54f1fd0c4c9a100", Name: "x"}, "no UUID"},
	} {
		_, err := New(Config{Name: "sales", Transport: &inmemory.Transport{}, Host: c.host})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// ServiceControl would show both as stopping and starting all the time.
func TestInstancesWithOneHostIDAndTwoNamesAreLogged(t *testing.T) {
	const a, b = "0199a2f06f2b7cc1a4c54f1fd0c4c9a1", "0199a2f06f2b7cc1a4c54f1fd0c4c9a2"
	for name, c := range map[string]struct {
		endpoints [2]string
		hosts     [2]Host
		want      int
	}{
		"two names":     {[2]string{"sales", "sales"}, [2]Host{{a, "rack 7"}, {a, "rack 8"}}, 1},
		"one name":      {[2]string{"sales", "sales"}, [2]Host{{a, "rack 7"}, {a, "rack 7"}}, 0},
		"two ids":       {[2]string{"sales", "sales"}, [2]Host{{a, "rack 7"}, {b, "rack 8"}}, 0},
		"two endpoints": {[2]string{"sales", "billing"}, [2]Host{{a, "rack 7"}, {a, "rack 8"}}, 0},
	} {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, nil))
		var both []*Endpoint
		for i := range 2 {
			e, err := New(Config{
				Name: c.endpoints[i], Transport: &inmemory.Transport{}, Host: c.hosts[i], Logger: logger,
			})
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, e)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = RunAll(ended, both...)
		if n := strings.Count(out.String(), "one Host.ID and two names"); n != c.want {
			t.Errorf("%s: %d warnings, want %d: %s", name, n, c.want, out.String())
		}
	}
}
