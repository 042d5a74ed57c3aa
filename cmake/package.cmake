# What an installed carat has beside the program, and the package of it (scripts/release.sh).
#   CARAT_LICENSES  folder with the licences of the libraries inside, which a portable program is built with
set(CARAT_LICENSES "" CACHE PATH "Licences of the libraries inside the program, for packages")
include(GNUInstallDirs)
set(package ${PROJECT_BINARY_DIR}/package)
file(READ deploy/carat.service unit)
string(REPLACE "/usr/local/bin/carat" "/usr/bin/carat" unit "${unit}")
string(REGEX REPLACE "^# systemd unit[^\n]*\n[^\n]*\n" "# Settings: /etc/carat.ini (an example is in /usr/share/doc/carat), then systemctl enable --now carat\n" unit "${unit}")
string(REPLACE "[Service]" "ConditionPathExists=/etc/carat.ini\n\n[Service]" unit "${unit}")
file(CONFIGURE OUTPUT ${package}/carat.service CONTENT "${unit}" @ONLY)

# The program itself makes its manual page and completions; another machine's program runs in an emulator.
set(run ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:carat>)
list(JOIN run "' '" run)
add_custom_command(OUTPUT ${package}/carat.1.gz ${package}/carat.bash ${package}/_carat ${package}/carat.fish DEPENDS carat
  COMMAND sh -c "'${run}' man | gzip -9n >carat.1.gz && '${run}' completions bash >carat.bash && \
'${run}' completions zsh >_carat && '${run}' completions fish >carat.fish"
  WORKING_DIRECTORY ${package} VERBATIM)
add_custom_target(package_files DEPENDS ${package}/carat.1.gz)

install(TARGETS carat RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${package}/carat.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${package}/carat.bash DESTINATION share/bash-completion/completions RENAME carat)
install(FILES ${package}/_carat DESTINATION share/zsh/vendor-completions)
install(FILES ${package}/carat.fish DESTINATION share/fish/vendor_completions.d)
install(FILES ${package}/carat.service DESTINATION lib/systemd/system)
install(FILES deploy/carat.ini deploy/grafana.json deploy/openapi.json README.md CHANGELOG.md DESTINATION share/doc/carat)
install(FILES LICENSE DESTINATION share/doc/carat RENAME copyright)
if(CARAT_LICENSES)
  install(DIRECTORY ${CARAT_LICENSES}/ DESTINATION share/doc/carat/licenses)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The authors of Carat <carat@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Runs Gemma 4 and Qwen3.6 on this computer")
set(CPACK_PACKAGE_DESCRIPTION "A chat in the terminal, a page in the browser, and a server that speaks the APIs of OpenAI and Anthropic.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
# The program has everything else inside: one package for all of Debian 11 to 13 and Ubuntu 20.04 to 24.04.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.31)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
include(CPack)
