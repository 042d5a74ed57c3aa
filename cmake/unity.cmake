# CARAT_UNITY: several files in one compilation, where headers cost more than the files themselves. Batches are files
# that stand beside each other in one folder; those of a chat format go together.
function(carat_unity target)
  get_target_property(sources ${target} SOURCES)
  foreach(file ${sources})
    string(REGEX MATCH "(chat/(gemma|qwen))|[^/]+/[^/]*$" group "${file}")
    string(REGEX REPLACE "/[^/]*\\.cc$" "" group "${group}")
    string(MAKE_C_IDENTIFIER "${group}" group)
    math(EXPR n_${group} "0${n_${group}} + 1")
    math(EXPR batch "${n_${group}} / 10")
    set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP "${group}_${batch}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE -Wno-shadow -Wno-subobject-linkage)  # what files say to each other here
endfunction()
foreach(target carat_text carat_engine carat_tools carat_measure carat_serve carat_apps carat)
  carat_unity(${target})
endforeach()
foreach(target carat_apps carat)  # nothing there computes
  target_compile_options(${target} PRIVATE -O1)
endforeach()
