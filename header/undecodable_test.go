package header_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/header"
)

func TestUndecodableHeadersKeepEveryByte(t *testing.T) {
	for _, tt := range []struct{ name, raw, want string }{
		{"nothing", "", ""},
		{"JSON", `{"Tenant":{"id":1}}`, `{"Tenant":{"id":1}}`},
		{"not UTF-8", "a\xff", "base64:Yf8="},
		{"NUL", "a\x00", "base64:YQA="},
		{"the prefix itself", "base64:Yf8=", "base64:YmFzZTY0OllmOD0="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := header.FormatUndecodable(tt.raw)
			if got != tt.want {
				t.Errorf("FormatUndecodable(%q) = %q, want %q", tt.raw, got, tt.want)
			}
			if raw, err := header.ParseUndecodable(got); raw != tt.raw || err != nil {
				t.Errorf("ParseUndecodable(%q) = %q, %v, want %q", got, raw, err, tt.raw)
			}
		})
	}
	if _, err := header.ParseUndecodable("base64:*"); err == nil {
		t.Error("ParseUndecodable read what is not base64")
	}
}
