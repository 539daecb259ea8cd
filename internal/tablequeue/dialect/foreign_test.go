package dialect

import (
	"regexp"
	"testing"
)

func TestAUUIDIsKeptAndOthersAreReplaced(t *testing.T) {
	const id = "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1"
	for _, same := range []string{id, "0199A2F0-6F2B-7CC1-A4C5-4F1FD0C4C9A1", "0199a2f06f2b7cc1a4c54f1fd0c4c9a1"} {
		if got := UUID(same); got != id {
			t.Errorf("%q: %q", same, got)
		}
	}
	version4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for _, other := range []string{"", "no uuid", id + "0", id[1:], "{" + id + "}", "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9ag", "0199a2f06f2b7cc1a4c54f1fd0c4c9a10"} {
		if got := UUID(other); !version4.MatchString(got) || got == UUID(other) {
			t.Errorf("%q: %q", other, got)
		}
	}
}
