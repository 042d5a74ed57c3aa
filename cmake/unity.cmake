# CARAT_UNITY: several files in one compilation, where headers cost more than the files themselves. Batches are files
# that stand beside each other in one folder; those of a chat format go together.
function(carat_unity target)
  get_target_property(sources ${target} SOURCES)
  foreach(file ${sources})
    string(REGEX MATCH "(chat/(gemma|qwen))|[^/]+/[^/]*$" group "${file}")
    string(REGEX REPLACE "/[^/]*\\.cc$" "" group "${group}")
    string(MAKE_C_IDENTIFIER "${group}" group)
    math(EXPR n_${group} "0${n_${group}} + 1")
    math(EXPR batch "${n_${group}} / 20")
    set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP "${group}_${batch}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE -Wno-shadow -Wno-subobject-linkage)  # what files say to each other here
endfunction()
foreach(target carat_state carat_parts carat_text carat_engine carat_tools carat_measure carat_serve carat_apps carat)
  carat_unity(${target})
endforeach()
# GCC 14 crashes when another file includes nvml.cc: over Nvml::Impl, whose members have types of an unnamed namespace.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/measure/nvml.cc TARGET_DIRECTORY carat_measure
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(NOT CARAT_PORTABLE)  # a release is compiled once for many
  foreach(target carat_serve carat_apps carat)  # nothing there computes
    target_compile_options(${target} PRIVATE -O1 -Wno-maybe-uninitialized)  # GCC 12 errs about it at -O1
  endforeach()
endif()
# Files that read JSON cost most of carat_model: those go together whose names do not meet. The rest stays alone.
set(readers_0 hf_source hf_quant hf_quant_read hf_quant_pack hf_sound hf_shards hf_stacks safetensors)
set(readers_1 hf_config hf_qwen_tower hf_rope source what_it_is name_parts)
set(readers_2 hf_qwen gguf)
foreach(batch readers_0 readers_1 readers_2)
  list(TRANSFORM ${batch} REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/model/files/\\1.cc")
  set_property(SOURCE ${${batch}} TARGET_DIRECTORY carat_model PROPERTY UNITY_GROUP ${batch})
endforeach()
set_target_properties(carat_model PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
target_compile_options(carat_model PRIVATE -Wno-shadow -Wno-subobject-linkage)
