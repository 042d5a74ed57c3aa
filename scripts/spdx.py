#!/usr/bin/env python3
"""What is inside a release, as SPDX 2.3 (JSON). Usage: scripts/spdx.py PORTABLE SOURCE VERSION COMMIT cpu|cuda NAME PROGRAM
PORTABLE: the folder of scripts/portable.sh, whose packages tell the versions; the page's are those of web/package.json."""
import datetime, hashlib, json, os, re, sys
from pathlib import Path

portable, source, version, commit, kind, name, program = sys.argv[1:]
DEBIAN = {  # package -> name here, licence
    "libstdc++-12-dev": ("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1"), "libgcc-10-dev": ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libfmt-dev": ("fmt", "MIT"), "nlohmann-json3-dev": ("nlohmann-json", "MIT"), "libboost1.74-dev": ("boost", "BSL-1.0"),
    "libssl-dev": ("openssl", "Apache-2.0"), "libcli11-dev": ("CLI11", "BSD-3-Clause"), "libpcre2-dev": ("pcre2", "BSD-3-Clause"),
    "libedit-dev": ("libedit", "BSD-3-Clause"), "libbsd-dev": ("libbsd", "BSD-3-Clause"), "libmd-dev": ("libmd", "BSD-3-Clause"),
    "libncurses-dev": ("ncurses", "X11"), "curl": ("curl", "curl"), "cpp-httplib": ("cpp-httplib", "MIT"),
    "libjpeg62-turbo-dev": ("libjpeg-turbo", "IJG AND BSD-3-Clause AND Zlib"), "libpng-dev": ("libpng", "libpng-2.0"),
    "zlib1g-dev": ("zlib", "Zlib"), "libwebp-dev": ("libwebp", "BSD-3-Clause")}
PAGE = {"dompurify": "MPL-2.0 OR Apache-2.0", "highlight.js": "BSD-3-Clause", "marked": "MIT", "preact": "MIT", "temml": "MIT"}


def versions():
    """Of Debian's packages, by the names of their files."""
    found = {}
    for file in list(Path(portable, "apt").glob("debs-*/*.deb")) + list(Path(portable, "source").glob("*.dsc")):
        m = re.match(r"([^_]+)_([^_]+?)(?:_[a-z0-9]+\.deb|\.dsc)$", file.name)
        if m:
            found[m[1]] = m[2].replace("%3a", ":")
    return found


packages = [{"name": "carat", "versionInfo": version, "licenseDeclared": "Apache-2.0", "comment": f"commit {commit}"}]
found = versions()
for package, (title, licence) in DEBIAN.items():
    packages.append({"name": title, "versionInfo": found[package], "licenseDeclared": licence,
                     "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                       "referenceLocator": f"pkg:deb/debian/{package}@{found[package]}"}]})
for package, at in json.loads(Path(source, "web/package.json").read_text())["dependencies"].items():
    packages.append({"name": package, "versionInfo": at, "licenseDeclared": PAGE[package],
                     "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:npm/{package}@{at}"}]})
if kind == "cuda":
    packages.append({"name": "cudart", "versionInfo": "of the toolkit that built it", "licenseDeclared": "LicenseRef-NVIDIA-CUDA-EULA"})
for p in packages:
    p["SPDXID"] = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", p["name"])
    p.update(downloadLocation="NOASSERTION", filesAnalyzed=False, licenseConcluded="NOASSERTION", copyrightText="NOASSERTION")
data = Path(program).read_bytes()
made = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
out = {
    "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
    "documentNamespace": f"urn:carat:{name}:{commit}:{hashlib.sha256(data).hexdigest()[:16]}",
    "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: scripts/spdx.py"]},
    "documentDescribes": ["SPDXRef-carat"], "packages": packages,
    "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-carat"}] +
    [{"spdxElementId": "SPDXRef-carat", "relationshipType": "CONTAINS", "relatedSpdxElement": p["SPDXID"]} for p in packages[1:]],
}
if kind == "cuda":
    out["hasExtractedLicensingInfos"] = [{"licenseId": "LicenseRef-NVIDIA-CUDA-EULA", "name": "NVIDIA CUDA Toolkit EULA",
                                          "extractedText": "docs.nvidia.com/cuda/eula: the CUDA runtime may be distributed with a program."}]
print(json.dumps(out, indent=1))
